"""Tools under other systems' names and shapes, off unless a setting asks for them.

Each system has a file with its names, arguments and forms of results. They call the same services as the tools of
`mcp.tools`, add no ability that those lack, and nothing else imports them.
"""
