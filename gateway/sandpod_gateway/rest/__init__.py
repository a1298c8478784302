"""The same operations by plain HTTP, below /api/v1: for programs and for people who script.

An operation is a tool with an address: scopes, limits, audit and masking are those of its call. What MCP can't carry is
here besides: files as they are, and a run's output as a stream of events.
"""
