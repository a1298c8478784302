"""Who a caller is: API keys, and links that carry their own permission.

Nothing here knows tools, runs or sandboxes.
"""
