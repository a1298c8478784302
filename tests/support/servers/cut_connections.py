"""A way to a server of this machine over which connections can be cut, as a network does it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Way:
    """Passes bytes on, both ways; `address` leads to the server by it."""

    def __init__(self, upstream: str) -> None:
        self._host, _, port = upstream.removeprefix("http://").partition(":")
        self._port = int(port)
        self._open: set[asyncio.StreamWriter] = set()
        self.address = ""
        self.cuts = 0

    def cut(self) -> None:
        """Cut all connections there are; new ones are taken."""
        self.cuts += 1
        for writer in self._open:
            writer.transport.abort()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        there, here = await asyncio.open_connection(self._host, self._port)
        self._open |= {writer, here}
        try:
            await asyncio.gather(_copy(reader, here), _copy(there, writer))
        finally:
            self._open -= {writer, here}
            for each in (writer, here):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(64 * 1024):
            writer.write(data)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def way_to(upstream: str) -> AsyncIterator[Way]:
    """Give a way to a server."""
    way = Way(upstream)
    async with await asyncio.start_server(way.pass_on, "127.0.0.1", 0) as server:
        way.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield way
        way.cut()
