"""Starting programs: the zygote as the runner sees it, spare Node processes, languages and the environment of programs.

Nothing here knows of runs.
"""
