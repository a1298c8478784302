"""The ways in over HTTP: transports, limits on connections, sessions and requests, the routes that links lead to.

What has to do with a connection, a header or a status code for MCP and links belongs here; REST, E2B and the
console have rooms of their own. What a tool does is not decided here.
"""
