"""Packages for sandboxes that have no network: resolved and downloaded here, installed there."""
