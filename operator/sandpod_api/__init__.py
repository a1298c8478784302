"""What operator, gateway and their users agree on: the three resources, their conditions, names.

It imports nothing of Sandpod and no client of any server; what calls return is the gateway's.
"""
