"""The web console: pages for people who would rather look than read.

A face like `rest`: what a page shows or does is a tool call of that face, so scopes, limits, audit and masking are
those of calls. Nothing that a sandbox made is ever part of a page: it is text, or in a frame without the page's rights.
"""
