"""The workspace: file operations, uploads, archives, artifacts. The runner's own files are not among them."""
