"""What works at run time: watch events in, one reconcile at a time for each object, writes out.

Order, retries, conflicts and what is remembered between two reconciles belong here. No decision about objects does:
those are taken in `planning`.
"""
