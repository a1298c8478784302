"""The Kubernetes client of operator and gateway: calls, errors, kinds of objects and their paths, cache and work queue.

Nothing in here decides what is created, changed or deleted.
"""
