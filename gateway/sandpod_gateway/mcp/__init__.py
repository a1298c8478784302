"""The MCP side of the gateway: server, tools by group, streaming."""
