"""The commands of `sandpod`, each in a file of its own: what a person types, and what is printed.

What a command does is elsewhere: here are its arguments and its words.
"""
