"""Programs that a sandbox's own Python runs to report its packages and to put others in place.

They are sent there as a zip file, use the standard library only, and run under Python 3.9 or later. The gateway never
imports them.
"""
