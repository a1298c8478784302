"""What a sandbox may use and can reach, as seen from inside: memory, threads, network, figures of use.

It measures and proves. Which run ends for it is decided in `runs`, and the disk is counted in `files`.
"""
