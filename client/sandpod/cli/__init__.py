"""The commands of `sandpod` that use a server, each in a file of its own: what a person types, and what is printed."""
