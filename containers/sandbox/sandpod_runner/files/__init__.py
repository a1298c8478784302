"""The workspace: file operations, uploads, archives, artifacts, and the count of what it holds.

All that walks or changes the workspace for a caller belongs here, inside its bounds. The runner's own files and
logs are not among them.
"""
