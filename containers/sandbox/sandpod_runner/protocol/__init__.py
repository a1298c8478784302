"""The wire format between gateway and runner: frames, messages, fields, paths and errors.

It is the part that the gateway imports too, so it does no I/O and imports nothing of the runner. How a message is
acted on is decided by either side.
"""
