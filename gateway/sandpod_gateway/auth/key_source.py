"""Where a server's API keys come from while it runs."""

from collections.abc import Callable
from typing import Protocol

from sandpod_gateway.auth.api_keys import KeyFile


class KeySource(Protocol):
    """A place that holds API keys. Its methods raise `SandpodError` where they can't be had; it says why."""

    async def read(self) -> KeyFile:
        """Return the keys; where there is nothing yet, there are none."""

    async def follow(self, use: Callable[[KeyFile], None]) -> None:
        """Pass the keys on, now and at each change, until cancelled.

        Where this raises, what was passed on last stays in use: a mistake in the place must lock nobody out.
        """

    async def change(self, change: Callable[[KeyFile], KeyFile]) -> KeyFile:
        """Replace the keys by what `change` makes of them, and return that; nobody else changes them meanwhile.

        It may be called more than once. What it raises is raised, and nothing is changed then. StartError names the
        place, which is not for callers to know.
        """
