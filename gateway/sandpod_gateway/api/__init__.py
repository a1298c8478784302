"""What callers send and get, and types that all rooms share: bounds on messages, results, coded errors, toolsets.

Nothing here runs anything.
"""
