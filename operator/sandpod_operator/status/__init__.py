"""What the status of a Sandbox says: its conditions, reasons and times.

Each condition has its function here, from what was observed to a sentence, and is pure. What is done about it
belongs in `planning`, and the names of conditions and reasons are `sandpod_api`'s.
"""
