"""Pure decisions: from what one reconcile sees to the writes that it asks for, and when to look again.

Each resource has a file of its own. There is no client, clock or metric here, and what an object looks like is
written in `manifests`.
"""
