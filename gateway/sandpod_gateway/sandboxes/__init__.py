"""Who holds which sandbox, its lifetime, and the one connection to each that is in use.

Every handle from outside is resolved here, for all services alike, and here it is said how a sandbox ended. How a
sandbox is made is the backend's business, and what is done in it that of runs, files, packages and terminals.
"""
