"""Streams of bytes to programs in pods, by Kubernetes' exec protocol. What the bytes mean is not known here."""
