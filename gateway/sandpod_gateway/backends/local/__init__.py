"""Sandboxes on this machine: bubblewrap, namespaces, a system-call filter, limits."""
