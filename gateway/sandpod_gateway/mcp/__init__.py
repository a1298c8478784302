"""The MCP server: tools, resources, the prompt, and how results and errors look to a client.

What a tool does is done by the services below; FastMCP is known here, in `http`, `auth` and `app` alone.
"""
