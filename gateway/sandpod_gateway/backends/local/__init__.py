"""Sandboxes on this machine: bubblewrap, namespaces, a system-call filter, limits.

What can't be had here is refused at the start with a sentence.
"""
