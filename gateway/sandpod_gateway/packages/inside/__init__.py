"""Programs that run in sandboxes and put packages in place there.

Standard library only; the gateway never imports them.
"""
