"""The gateway's copy of the namespace's Sandboxes, the watch that feeds it, and the records made from them.

What a caller asks about a sandbox is answered from here without a request. Nothing here writes to the cluster or
chooses a sandbox; that is done in `claims`.
"""
