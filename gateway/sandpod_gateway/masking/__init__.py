"""Replacing secrets' values in what programs write, whatever piece they come in.

The search, and the forms in which a value may appear, belong here. It is pure: which values there are, and where
they come from, is not known here.
"""
