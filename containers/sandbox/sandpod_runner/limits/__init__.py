"""What a sandbox may use and what it can reach: memory, disk, network and kernel, as seen from inside.

It measures and answers; which run ends is decided in `runs`.
"""
