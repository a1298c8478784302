"""The operator's copy of the objects in its namespaces. It talks to nothing and decides nothing."""
