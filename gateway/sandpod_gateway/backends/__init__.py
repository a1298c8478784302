"""The backends, which make and end sandboxes: the protocol (`base`), its implementations, and the factory.

What all of them need besides, such as refusals, tenants and the wait for a start, is here too. Who holds a sandbox
and what is said to its runner belong above: a backend gives streams of bytes and knows nothing of what they mean.
"""
