"""Tells a runner how much of its runs' output has come, so that it keeps what has not. Owned by `connection.py`.

It has a task of its own: the reader must never wait for the other side to read.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from sandpod_gateway.runner.demux import ConnectionLostError, Inbox


class Acknowledger:
    """Sends `ack` frames while a connection lives.

    Args:
        inbox: Knows what has come.
        send: Sends a frame.
    """

    def __init__(self, inbox: Inbox, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        self._inbox = inbox
        self._send = send
        self._due = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def look(self) -> None:
        """Send what is due, soon."""
        if self._inbox.acks_due:
            self._due.set()

    def stop(self) -> None:
        """Send nothing more."""
        if self._task is not asyncio.current_task():  # which may be the one that found the stream to be over
            self._task.cancel()

    async def _run(self) -> None:
        with contextlib.suppress(ConnectionLostError):
            while True:
                await self._due.wait()
                self._due.clear()
                for header in self._inbox.take_acks():
                    await self._send(header)
