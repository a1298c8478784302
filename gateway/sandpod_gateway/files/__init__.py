"""Files in workspaces: reading, changing, artifacts, links, transfers in parts.

Paths are checked here before a runner sees them.
"""
