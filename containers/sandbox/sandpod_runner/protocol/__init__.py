"""The wire format between gateway and runner, and the errors in it: the part that the gateway imports too.

Nothing here reads or writes anything.
"""
