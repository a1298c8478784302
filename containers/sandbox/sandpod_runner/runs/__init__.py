"""Runs from request to result: their contexts and code files, who gets their output, and what is remembered of them.

How processes are started belongs in `processes`.
"""
