"""npm packages: what callers ask for, resolving, downloading, and what its failures mean.

Only what differs from Python's packages belongs here. Cache, queue and the way into the sandbox are those of the
folder above, and no script of a package is run.
"""
