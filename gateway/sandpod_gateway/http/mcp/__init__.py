"""MCP over HTTP: its transports, and sessions of older clients.

Such a session may be at any gateway of an installation, which passes its requests on. What holds for every request over
HTTP, whatever it asks for, is one room up.
"""
