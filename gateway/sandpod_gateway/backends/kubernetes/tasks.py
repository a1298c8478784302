"""Work that goes on after the call that started it: records of use, deletions of what a cancelled call left."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT: Final = 5.0
"""Seconds that work in progress gets to finish when the backend closes."""

T = TypeVar("T")


class Background:
    """Tasks that nobody waits for. Their number is the callers' business to bound."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work that a cancel of the caller does not reach. An error that nobody asks for is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.debug("background work ended with %r", task.exception())

    async def close(self) -> None:
        """Wait for what is in progress, at most `CLOSE_TIMEOUT` seconds, then cancel it."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
