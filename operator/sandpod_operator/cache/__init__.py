"""The operator's copy of the objects in its namespaces, and the indexes over it.

What is looked up by pool or template, and pods that have lost their owner, belong here. It talks to nothing and decides
nothing; `controllers` feeds it.
"""
