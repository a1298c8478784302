"""What operator, gateway and their users agree on: the four resources, their conditions, names.

It imports no other package of Sandpod and no client; the results of calls belong to the gateway.
"""
