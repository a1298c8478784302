"""A way to a server over which connections can be cut, stalled and delayed, as a network does it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Way:
    """Passes bytes on, both ways; `address` leads to the server by it.

    Attributes:
        delay: Seconds that each piece is kept.
        cuts: How often all connections were cut.
    """

    def __init__(self, upstream: str) -> None:
        self._host, _, port = upstream.removeprefix("http://").partition(":")
        self._port = int(port)
        self._open: set[asyncio.StreamWriter] = set()
        self._free = asyncio.Event()
        self._free.set()
        self.address = ""
        self.delay = 0.0
        self.cuts = 0

    def cut(self) -> None:
        """Cut all connections there are; new ones are taken."""
        self.cuts += 1
        for writer in self._open:
            writer.transport.abort()

    def stall(self, *, stalls: bool) -> None:
        """Let nothing pass, in the connections there are and in new ones, or let all of it pass again."""
        if stalls:
            self._free.clear()
        else:
            self._free.set()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            there, here = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, here}
        self._open |= ends
        try:
            await asyncio.gather(self._copy(reader, here), self._copy(there, writer))
        finally:
            self._open -= ends
            for each in ends:
                each.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(64 * 1024):
                await self._free.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
            writer.write_eof()


@asynccontextmanager
async def way_to(upstream: str) -> AsyncIterator[Way]:
    """Give a way to a server."""
    way = Way(upstream)
    async with await asyncio.start_server(way.pass_on, "127.0.0.1", 0) as server:
        way.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield way
        way.stall(stalls=False)
        way.cut()
