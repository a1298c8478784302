"""Who gets the next free place while a ResourceQuota or the nodes are full.

The line of those who wait, its fairness between owners and its back-off belong here. Nothing of how pods are made
does, nor what callers are told meanwhile.
"""
