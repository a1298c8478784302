"""npm packages: what callers ask for, resolving, downloading, and what its failures mean."""
