"""Programs that are run in sandboxes, on any Python from 3.9 on: each prints facts as JSON.

A new attempt at what a sandbox must not be able to do belongs here, with the standard library alone. None judges
what it saw; that is done in `rows`.
"""
