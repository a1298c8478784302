"""What is known of sign-in through this gateway without the imports that it needs: they take a third of a second."""

from typing import Final

CONSOLE_BACK: Final = "/console/sign-in/back"  # where users of the console are led back to


class Proxied:
    """What users sign in through."""
