"""The operations that REST alone has: tools that no MCP client is shown, since a model pays for each one.

They are on a server of their own behind the guards of the others, so audit, limits, scopes and errors are the same.
What an operation does belongs to a service below.
"""
