"""E2B's API, below /e2b, so that E2B's own clients work here with nothing changed but address and key.

It is a face: each request becomes calls of the tools or their services, whose scopes, limits, audit, masking and usage
apply. What is E2B's alone is here: its addresses, forms and errors, and the home folder that it has in place of
/workspace.
"""
