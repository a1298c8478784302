"""Replacing secrets' values in what programs write, whatever piece they come in.

Pure: which values there are, and where they come from, is not known here.
"""
