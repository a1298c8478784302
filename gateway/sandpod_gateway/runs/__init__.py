"""One run from call to result, in the foreground or the background: its request, limits, progress, output and hints.

How a program is started and stopped is the runner's business, and what a client sees of the result is `mcp`'s.
"""
