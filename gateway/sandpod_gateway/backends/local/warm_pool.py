"""Keeps some sandboxes started before they are asked for. Each is used once and never returned."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from sandpod_gateway.backends.local.process import LocalProcess
from sandpod_gateway.errors import SandpodError

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 5.0


class WarmPool:
    """Sandboxes that wait for a claim."""

    def __init__(self, start: Callable[[], Awaitable[LocalProcess]], size: int) -> None:
        self._start = start
        self._size = size
        self._ready: list[LocalProcess] = []
        self._wanted = asyncio.Event()
        self._filler: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to fill it."""
        self._wanted.set()
        self._filler = asyncio.create_task(self._fill())

    async def close(self) -> None:
        """Stop filling it and end what waits."""
        if self._filler is not None:
            self._filler.cancel()
            await asyncio.wait([self._filler])
            self._filler = None
        while self._ready:
            await self._ready.pop().end()

    async def take(self) -> LocalProcess | None:
        """Return a warm sandbox, or None where none is ready."""
        while self._ready:
            taken = self._ready.pop(0)
            self._wanted.set()
            if not taken.ended:
                return taken
            await taken.end()
        return None

    def __len__(self) -> int:
        return sum(not waiting.ended for waiting in self._ready)

    async def _fill(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                while len(self._ready) < self._size:
                    self._ready.append(await self._start())
            except (SandpodError, OSError) as error:
                logger.warning("can't start a sandbox to have ready: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._wanted.set()
