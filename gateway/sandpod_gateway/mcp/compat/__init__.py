"""Tools under other systems' names and shapes, off unless a setting asks for them.

They call the same services as the tools of `mcp.tools`, and nothing else imports them.
"""
