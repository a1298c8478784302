"""What callers send and get, and types that all rooms share: bounds on messages, results, coded errors, toolsets.

A field of a result or a new error code belongs here, with the sentence that describes it. Nothing here runs
anything, and how a protocol wraps a result is decided where that protocol is served.
"""
