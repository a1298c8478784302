"""JavaScript contexts: the process that stands between the runner and Node, and the modules that run in Node.

It runs under the image's own Python. Everything here belongs to the program, and nobody trusts it.
"""
