"""What a program writes, on its way: pipes, displays, and the bounded log with its file.

Who gets it is decided in `runs`.
"""
