"""The process that programs are forked from, under the image's own Python: what it prepares, filters and hooks.

What every program shall find ready, or must not be able to do, is set up here before the fork. The program's own side
is in `python` and `javascript`; of the runner's other rooms it knows `ipc` and `protocol` alone.
"""
