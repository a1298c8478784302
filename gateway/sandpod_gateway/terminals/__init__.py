"""Terminals in sandboxes: opened, gone on with, shown and charged. How clients reach them is not known here."""
