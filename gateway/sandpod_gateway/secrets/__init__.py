"""Secrets for programs: their names, values and scopes, the bounds of these, and where they come from.

What is done with them is the business of runs, and hiding their values in output that of `masking`.
"""
