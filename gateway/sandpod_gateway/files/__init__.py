"""Files in workspaces: reading, changing, artifacts, links, transfers in parts.

Paths are checked here before a runner sees them, and sizes before anything is sent. How a file is given to a client
is decided by the tools and routes, and what is done on the disk by the runner.
"""
