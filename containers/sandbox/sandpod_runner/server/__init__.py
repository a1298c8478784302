"""Streams to the gateway and to people: how they come in, and what answers. Programs are the business of `runs`."""
