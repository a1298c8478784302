"""`sandpod verify`: tries every promise about isolation in the user's own cluster, or on this machine.

`rows` is the registry: what is tried, and a pure judgement of what was seen. `inside` has the programs that are run in
sandboxes. The modules beside them make sandboxes, run these programs and read the cluster's objects; `report` shows
what came of it. Nothing here changes a cluster but for sandboxes of its own, which it deletes.
"""
