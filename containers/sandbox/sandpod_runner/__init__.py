"""The program inside every sandbox, with the standard library only.

`serve` starts it; the folders are its rooms, and those for forked programs (`zygote`, `python`, `javascript`) are
apart from the others. The gateway imports its wire format, `protocol`; who a caller is and what it may do is not
known here.
"""
