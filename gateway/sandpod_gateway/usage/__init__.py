"""What callers use, and the limits of it: counted by each gateway, shared by all, reported by `sandpod usage`.

The accounting is pure: I/O is in `replica`, which publishes this gateway's documents and takes in those of others, and
in the stores that hold them. Nothing here knows sandboxes, runs or MCP; the services report to `meter`.
"""
