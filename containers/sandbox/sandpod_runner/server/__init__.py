"""Streams from the gateway and from people: how they come in, and what answers them. `runs` handles programs."""
