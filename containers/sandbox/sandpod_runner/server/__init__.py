"""Streams to the gateway and to people: how they come in, what their frames ask for, and what answers them.

Nothing here knows how a program is started; that is asked of `runs`.
"""
