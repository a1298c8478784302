"""What runs the process: the parts joined, leader election, health and metrics over HTTP, the recording of Events.

No decision about sandboxes belongs here.
"""
