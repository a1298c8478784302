"""Python programs and contexts in their own process: how code runs, and what it shows.

It runs under the image's own Python. Everything here belongs to the program, and nobody trusts it.
"""
