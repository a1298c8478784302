"""Starting programs: launcher, spare Node processes, languages, environment.

How a process begins, is asked to end and is killed with all below it belongs here. Nothing here knows of runs or of
who asked.
"""
