"""Programs that run inside local sandboxes, or on the way into one: first process, launcher, probe.

They use the standard library only and never import the rest of the gateway. How a sandbox is made around them is
decided in the folder above.
"""
