"""The tools, by what they work on: arguments and descriptions.

A new tool goes here; what it does belongs to a service.
"""
