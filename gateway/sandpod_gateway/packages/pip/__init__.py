"""Python packages: what callers ask for, resolving, downloading, and what its failures mean.

pip itself runs in a process of its own, whose program is here. Cache, queue and the way into the sandbox are those
of the folder above, and no build of a package is run.
"""
