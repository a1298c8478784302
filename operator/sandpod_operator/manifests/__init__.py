"""The objects that the operator writes, each built whole.

What a pod, policy or quota contains, and what objects of others mean for it, belongs here. All of it is pure:
whether an object is written is decided in `planning`, and the write is made in `controllers`.
"""
