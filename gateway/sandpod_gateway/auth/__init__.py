"""Who a caller is: API keys, users who sign in (`oidc`), and links that carry their own permission.

Reading, making and revoking credentials, and the caller of the current request, belong here. What a caller may do
with a sandbox is decided by the services: nothing here knows tools, runs or sandboxes.
"""
