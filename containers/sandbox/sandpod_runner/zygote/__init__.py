"""The process that programs are forked from, under the image's own Python. It imports `ipc` and `protocol` alone."""
