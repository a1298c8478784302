"""Channels between the gateway and something in the sandbox, such as a terminal; imported when one is asked for."""
