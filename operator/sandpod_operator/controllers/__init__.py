"""What works at run time: watch events in, one reconcile at a time for each object, writes out.

No decision about objects belongs here: those are taken in `planning`.
"""
