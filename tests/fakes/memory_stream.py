"""A two-way byte stream in memory, with the back-pressure of a real one.

Called by the fake backend; both ends are in this process.
"""

import asyncio
from typing import Final

_CAPACITY: Final = 256 * 1024  # bytes that wait in one direction before a writer does
_READ: Final = 1024 * 1024  # bytes that one read gives at most


class _Pipe:
    """One direction."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._closed = False
        self._changed = asyncio.Condition()

    async def write(self, data: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or len(self._buffer) < _CAPACITY)
            if self._closed:
                raise ConnectionResetError("the stream is closed")
            self._buffer += data
            self._changed.notify_all()

    async def read(self) -> bytes:
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or bool(self._buffer))
            data = bytes(self._buffer[:_READ])
            del self._buffer[:_READ]
            self._changed.notify_all()
            return data

    async def close(self) -> None:
        async with self._changed:
            self._closed = True
            self._changed.notify_all()


class MemoryStream:
    """One end of a stream: a `ByteStream`."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def read(self) -> bytes:
        """Return the next bytes; empty when either side has closed the stream and nothing is left."""
        return await self._incoming.read()

    async def write(self, data: bytes) -> None:
        """Send the bytes, all or none; waits while the other side does not take what was sent before.

        Raises:
            ConnectionError: The stream is closed.
        """
        await self._outgoing.write(data)

    async def close(self) -> None:
        """Close both directions."""
        await self._incoming.close()
        await self._outgoing.close()


def stream_pair() -> tuple[MemoryStream, MemoryStream]:
    """Return the two ends of a new stream."""
    there, back = _Pipe(), _Pipe()
    return MemoryStream(back, there), MemoryStream(there, back)
