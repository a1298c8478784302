"""The MCP server: tools, resources, the prompt, and how results and errors look to a client.

What is checked, recorded and measured for each call belongs here too, and the transport over standard input and
output. What a tool does is done by the services below, and the transports over HTTP are in `http`.
"""
