"""Keeps some sandboxes started before they are asked for.

Called by `local.py`. A warm sandbox is used once and never returned.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from sandpod_gateway.errors import SandpodError

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 5.0


class _Startable(Protocol):
    @property
    def ended(self) -> bool: ...

    async def end(self) -> None: ...


T = TypeVar("T", bound=_Startable)


class WarmPool(Generic[T]):
    """Sandboxes that wait for a claim."""

    def __init__(self, start: Callable[[], Awaitable[T]], size: int) -> None:
        self._start = start
        self._size = size
        self._ready: list[T] = []
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

    async def take(self) -> T | None:
        """Return a warm sandbox, or None where none is ready."""
        while self._ready:
            taken = self._ready.pop(0)
            self._wanted.set()
            if not taken.ended:
                return taken
            await taken.end()
        return None

    def __len__(self) -> int:
        return sum(1 for waiting in self._ready if not waiting.ended)

    async def _fill(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                while len(self._ready) < self._size:
                    self._ready.append(await self._start())
            except (SandpodError, OSError) as error:
                logger.warning("can't start a sandbox to have ready: %s", error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.sleep(_RETRY_SECONDS)
                self._wanted.set()
