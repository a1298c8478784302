"""Claims: what is written to take a sandbox, who wins, how long to wait, and why one can't be met.

Changes to a Sandbox that belong to its claim, such as a resume, are here as well. Streams to the claimed pod, and
what happens in it, are not.
"""
