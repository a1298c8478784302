"""The tools, by what they work on: their names, arguments and descriptions.

A new tool goes here. What it does belongs to a service, and a tool that models shall not see belongs to
`rest.tools`.
"""
