"""The ways in over HTTP: transports, limits on sessions, the routes that links lead to.

What a tool does is not decided here.
"""
