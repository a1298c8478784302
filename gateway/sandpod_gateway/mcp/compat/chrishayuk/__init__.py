"""The tools of chrishayuk/mcp-code-sandbox: sandboxes, charts, telnet.

The programs here run in sandboxes.
"""
