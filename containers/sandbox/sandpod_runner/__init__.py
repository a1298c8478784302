"""The program inside every sandbox, standard library only: it starts code, streams frames and serves files.

The gateway imports `frames` and `protocol` from here, so that both sides have one home for the wire format.
"""
