"""Streams from the gateway and from people: how they come in, and what answers each kind of frame.

Greeting, order, back-pressure and the end of a stream belong here. Programs are handled in `runs`, and files in
`files`.
"""
