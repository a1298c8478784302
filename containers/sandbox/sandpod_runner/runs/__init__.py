"""Runs from request to result: contexts, code, who gets the output, how one ends, what is remembered.

Which run must end, and what its `end` says, is decided here. Starting processes belongs to `processes`, and frames
on a stream to `server`.
"""
