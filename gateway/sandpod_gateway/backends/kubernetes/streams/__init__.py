"""Streams of bytes to programs in pods, by Kubernetes' exec protocol, some of them opened before they are needed.

Opening, keeping, closing and losing such streams belongs here. What the bytes mean is not known here, but in
`runner`.
"""
