"""The tools, one file for each toolset: arguments and descriptions.

A new tool goes here; what it does belongs to a service.
"""
