"""Sandboxes on this machine: bubblewrap, namespaces, a system-call filter, limits, and the libraries that they have.

What is asked of this machine, and the sentence about what it lacks, belong here. What runs inside such a sandbox is
in `inside`, the runner itself is the same as in a pod, and there is nothing of a cluster.
"""
