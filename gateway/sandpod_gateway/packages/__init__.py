"""Packages for sandboxes that have no network: resolved and downloaded here, installed inside.

Installations, their cache, limits and errors belong here; what is particular to an index is in `pip` and `npm`, and
what runs in a sandbox in `inside`. Nothing of a package is run by the gateway.
"""
