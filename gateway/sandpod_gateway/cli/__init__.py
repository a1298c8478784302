"""The commands of `sandpod` that need the server's code, each in a file of its own: what is typed, and what is printed.

A new command's arguments and words belong here. What it does is elsewhere, and commands that only use a server
belong to the client.
"""
