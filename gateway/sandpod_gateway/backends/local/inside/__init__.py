"""Programs that run inside local sandboxes, or on the way into one.

Standard library only; they never import the gateway.
"""
