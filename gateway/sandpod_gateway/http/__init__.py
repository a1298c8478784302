"""The ways in over HTTP: limits on connections, sessions and requests, the routes that links lead to; MCP is in `mcp`.

What has to do with a connection, a header or a status code for MCP and links belongs here; REST, E2B and the
console have rooms of their own. What a tool does is not decided here.
"""
