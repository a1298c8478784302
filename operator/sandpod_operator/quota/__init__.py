"""Who gets the next free place while a ResourceQuota or the nodes are full. Nothing of how pods are made."""
