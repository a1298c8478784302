"""What runs the process: the parts joined, leader election, health and metrics over HTTP, the recording of Events.

What there is once in a process belongs here. No decision about sandboxes does, and nothing that reacts to a single
object.
"""
