"""Who a caller is: API keys, users who sign in (`oidc`), and links that carry their own permission.

Nothing here knows tools, runs or sandboxes.
"""
