"""Files in workspaces: reading, changing, artifacts, transfers in parts.

Paths are checked here before a runner sees them.
"""
