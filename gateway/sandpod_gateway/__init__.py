"""The gateway: one MCP endpoint in front of sandboxes, whatever backend gives them.

`app` joins the parts, `faces` the ways in besides MCP, and `settings` is all that can be chosen; the rooms below do
the work. What watches pods or runs inside a sandbox belongs to the operator and the runner, of which the gateway
knows the resources and the wire format alone.
"""
