"""Who holds which sandbox, and the one connection to each that is in use.

Every handle from outside is resolved here.
"""
