"""What E2B's clients ask of a sandbox itself, as its `envd` would answer: files, processes, terminals, watches.

Connect RPC is here, in the form that these clients send. How sandboxes are made, found and ended, and code that runs in
contexts, are one room up.
"""
