"""The process that programs are forked from, and what a forked process does until it is a program.

It runs under the image's own Python and imports nothing of the runner but `ipc` and `protocol`.
"""
