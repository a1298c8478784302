"""Channels between the gateway and something in the sandbox, such as a terminal.

What opens, feeds and closes one belongs here; it is imported when one is asked for. Runs have no part in it, and a
channel's bytes aren't understood.
"""
