"""The backends: the protocol, its implementations, one file each, and the factory."""
