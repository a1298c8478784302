"""Sandboxes as resources of a cluster: claimed by one write, looked up in a cache, reached by exec streams."""
