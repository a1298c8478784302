"""The gateway: one MCP endpoint in front of sandboxes, whatever backend gives them."""
