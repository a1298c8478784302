"""Sandboxes as resources of a cluster: claimed by one write, looked up in a cache, reached by exec streams.

Whatever the gateway reads or writes at the API server belongs here, also keys, secrets, tenants and usage that it
keeps there; the calls themselves are `sandpod_kube`'s. Pods, policies and pools are the operator's business:
nothing here creates them.
"""
