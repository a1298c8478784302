"""What operator, gateway and their users agree on: resources, conditions, names, results.

Everything else imports this package; it imports nothing of Sandpod and no client of any server.
"""
