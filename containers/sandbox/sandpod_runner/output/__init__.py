"""What a program writes, on its way: pipes, and the bounded log.

Reading without blocking, cutting and keeping belong here. Who gets the output, and when, is decided in `runs`.
"""
