"""The operator: keeps pods, policies and pools as the resources say.

`manager` runs the process, `controllers` react, `planning` decides and `manifests` builds. What a caller sees, and
all that is said to a runner, belongs to the gateway.
"""
