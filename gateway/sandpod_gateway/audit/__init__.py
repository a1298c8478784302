"""The audit log: one line of JSON for each act of a caller, chained by hashes, and the check of such lines.

Here are records, chain, places to write to, and verification. What is recorded of a request is decided where requests
come in (`mcp/audit.py`, `http/audit.py`); ordinary logs have nothing to do with it.
"""
