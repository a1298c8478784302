"""Sends frames over one stream, each of them whole or not at all.

The other side may stop reading: who sends waits for a bounded time, and then the stream is closed.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from sandpod_gateway.backends.base import ByteStream
from sandpod_gateway.runner.demux import ConnectionLostError
from sandpod_runner.protocol.frames import encode

WRITE_TIMEOUT: Final = 60.0
"""Seconds in which the runner takes something of what was sent before; the disk of a busy node is behind it."""


class Writer:
    """Sends frames; `lose` is called with the reason when the other side does not read."""

    def __init__(self, stream: ByteStream, lose: Callable[[ConnectionLostError], None]) -> None:
        self._stream = stream
        self._lose = lose
        self._lock = asyncio.Lock()
        self._later: set[asyncio.Task[None]] = set()
        self.lost: ConnectionLostError | None = None  # why nothing can be sent any more

    async def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame. One that is cancelled is not sent.

        Raises ConnectionLostError: the stream has ended, or the other side does not read.
        """
        if self.lost is not None:
            raise self.lost
        data = encode(header, payload)
        try:
            async with self._lock, asyncio.timeout(WRITE_TIMEOUT):
                await self._stream.write(data)
        except ConnectionError as error:
            raise self._reason() from error
        except TimeoutError as error:
            lost = ConnectionLostError("the runner does not read what it is sent")
            self._lose(lost)
            await self._stream.close()
            raise lost from error

    def _reason(self) -> ConnectionLostError:
        return self.lost or ConnectionLostError()

    def send_later(self, header: dict[str, Any]) -> None:
        """Send a frame for a caller that can't wait: it was cancelled, or failed."""
        task = asyncio.create_task(self._send_quietly(header))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _send_quietly(self, header: dict[str, Any]) -> None:
        with contextlib.suppress(ConnectionLostError):
            await self.send(header)
