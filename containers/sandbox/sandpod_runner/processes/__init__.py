"""Starting programs: launcher, spare Node processes, languages, environment. Nothing here knows of runs."""
