"""Packages for sandboxes that have no network: resolved and downloaded here, installed inside.

Nothing of a package is run by the gateway.
"""
