"""The gateway's copy of the namespace's Sandboxes, and the watch that feeds it."""
