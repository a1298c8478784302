"""The commands of `sandpod` that use a server, each in a file of its own: what a person types, and what is printed.

What such a command does is done by the client's classes. Commands that need the server's code, such as `serve`, are
the server's.
"""
