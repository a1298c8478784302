"""What the runner and forked processes share, for the oldest Python of an image: messages and system calls."""
