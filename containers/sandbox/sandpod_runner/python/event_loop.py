"""The event loop of a context that awaits: `asyncio.Runner`, and what does the same before Python 3.11."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine
from typing import Any


class OldRunner:
    """One event loop for one coroutine after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop."""
        return self._loop

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end; an interrupt cancels it first."""
        asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(task)
            raise


def make_runner() -> asyncio.Runner | OldRunner:
    """Return a new loop."""
    return asyncio.Runner() if sys.version_info >= (3, 11) else OldRunner()
