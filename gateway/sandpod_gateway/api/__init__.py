"""What callers send and get, and the words that all rooms share: bounds on messages, results, coded errors, toolsets.

Nothing here runs anything.
"""
