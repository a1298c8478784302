"""The socket between gateway and the runner of a local sandbox.

The gateway makes the listening socket and the runner inherits it, so that no path of the host has to be visible inside.
It knows nothing of what is sent.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Final

_BACKLOG: Final = 16
CLOSE_TIMEOUT: Final = 2.0  # seconds that the other side gets to read what was sent
_READ: Final = 256 * 1024  # bytes; asyncio buffers at most twice as much before it stops reading


class Listener:
    """A listening Unix socket that only this process can connect to.

    On Linux its path is gone before anything is started: the gateway connects through an open file. Elsewhere the path
    stays until `close`, in a folder of the gateway's user alone.
    """

    def __init__(self) -> None:
        with contextlib.ExitStack() as stack:
            self.socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            folder = Path(tempfile.mkdtemp(prefix="sandpod-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            self.address = str(folder / "s")
            self.socket.bind(self.address)
            self.socket.listen(_BACKLOG)
            if hasattr(os, "O_PATH"):
                inode = os.open(self.address, os.O_PATH | os.O_CLOEXEC)
                stack.callback(os.close, inode)
                self.address = f"/proc/self/fd/{inode}"
                shutil.rmtree(folder)
            self._open = stack.pop_all()

    def started(self) -> None:
        """Close this process's own end of the listening socket: with the runner gone, connecting fails."""
        self.socket.close()

    def close(self) -> None:
        """Close it. May be called more than once."""
        self._open.close()


class SocketStream:
    """A `ByteStream` over a connected Unix socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """Return the next bytes; empty when the other side is gone."""
        try:
            return await self._reader.read(_READ)
        except ConnectionError:
            return b""

    async def write(self, data: bytes) -> None:
        """Send the bytes, all or none; waits while the other side does not take what was sent before.

        Raises:
            ConnectionError: The stream is closed.
        """
        await self._writer.drain()
        if self._writer.is_closing():
            raise ConnectionResetError("the stream is closed")
        self._writer.write(data)

    async def close(self) -> None:
        """Close both directions, at the latest when the other side has not read the rest for a while."""
        self._writer.close()
        closed = asyncio.ensure_future(self._writer.wait_closed())
        await asyncio.wait({closed}, timeout=CLOSE_TIMEOUT)
        self._writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await closed


async def connect(address: str) -> SocketStream:
    """Connect to a listener. Raises OSError: nothing listens there any more."""
    reader, writer = await asyncio.open_unix_connection(address, limit=_READ)
    return SocketStream(reader, writer)
