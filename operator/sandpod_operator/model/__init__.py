"""The values that all other folders share: what is observed, and what a plan asks for.

Frozen types and what can be read off them belong here. No decision does, and nothing that reads or writes a
cluster.
"""
