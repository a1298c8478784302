"""The files of the workspace: operations on them, uploads, archives and artifacts, all confined to the workspace.

Files of the runner's own, such as the log of a run, do not belong here.
"""
