"""Who may use the network and the processor for packages, and when."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class Turns:
    """A number of turns at once, of which one owner has half at most: slow installations of one don't stop another's.

    An owner waits in one line for those, and only then in the line of all, which therefore has no more of one owner.

    Args:
        count: Turns at once.
    """

    def __init__(self, count: int) -> None:
        self._all = asyncio.Semaphore(count)
        self._share = max(1, count // 2)
        self._owners: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for a turn, which lasts until the block is left."""
        own = self._owners.setdefault(owner, asyncio.Semaphore(self._share))
        async with own, self._all:
            yield
