"""The gateway's end of the stream to a runner: frames sorted to who waits for them, messages checked.

A runner is untrusted. Which sandbox it is in, and whose that is, is not known here.
"""
