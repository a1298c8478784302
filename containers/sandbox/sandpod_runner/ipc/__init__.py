"""What the runner and forked processes share: messages between them, descriptors, system calls, the tree of processes.

It works under the oldest Python of an image. Whatever only one side needs belongs to that side.
"""
