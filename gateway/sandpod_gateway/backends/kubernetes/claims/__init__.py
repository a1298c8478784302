"""Claims: what is written, who wins, how long to wait, and why one can't be met."""
