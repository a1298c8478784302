"""The kubectl plugin: `kubectl sandpod`, for people who look after sandboxes.

It calls kubectl alone, with the rights of who types it. Nothing that operator or gateway need belongs here.
"""
