"""What the runner and the processes that it has forked share: messages between them and the few system calls of both.

Both sides import it, so it is written for the oldest Python that an image may have.
"""
