"""`sandpod keys`, `usage` and `audit`: keys, use and audit records at a server, by its REST API.

What the server's administrator does on files and in clusters, without a server, is its own program's work: an argument
that names such a place, as --file does, passes the whole command on. Parsers here know those arguments for that, for
--help and for completion.
"""
