"""What calls return: results, coded errors.

MCP tools, REST and CLI return these models; nothing here runs anything.
"""
