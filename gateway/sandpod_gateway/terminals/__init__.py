"""Terminals in sandboxes: opened, gone on with, shown and charged.

Their output, size and ends belong here. How clients reach them (WebSocket, E2B, the console) is not known here, and
the pseudo-terminal itself is the runner's.
"""
