"""A stream over the standard streams of the gateway's exec: the two pipes that `attach` has handed over.

No process stands between the runner and the exec. The socket that the pipes came over stays open: its end is the
exec's.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

from sandpod_runner.protocol.messages import HANDED_OVER, READY
from sandpod_runner.server.connection import Connection

logger = logging.getLogger(__name__)

_PATIENCE: Final = 5.0  # seconds in which a peer that connects must say why
_PIPES: Final = 2


async def join(control: socket.socket, connect: Callable[[], Connection]) -> None:
    """Serve a peer until it leaves: an exec that hands over its pipes, or a probe. The socket is closed here."""
    with control:
        try:
            async with asyncio.timeout(_PATIENCE):
                await _readable(control)
                data, fds, _, _ = socket.recv_fds(control, len(HANDED_OVER), _PIPES, socket.MSG_CMSG_CLOEXEC)
        except (OSError, TimeoutError):
            return
        if data == HANDED_OVER and len(fds) == _PIPES:
            await _serve(control, connect(), *fds)
            return
        for fd in fds:
            os.close(fd)
        if data == READY:
            control.send(READY)


async def _readable(sock: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)


async def _serve(control: socket.socket, connection: Connection, read_fd: int, write_fd: int) -> None:
    """Serve one stream over both pipes, which ends when either of them or the exec does."""
    loop = asyncio.get_running_loop()
    with os.fdopen(read_fd, "rb", buffering=0) as source, os.fdopen(write_fd, "wb", buffering=0) as target:
        try:
            out, _ = await loop.connect_write_pipe(lambda: connection, target)
            reading, _ = await loop.connect_read_pipe(lambda: _Source(connection, out), source)
        except (OSError, ValueError) as error:  # one of them is no pipe
            logger.warning("a stream is refused: %s", error)
            connection.abort()
            return
        connection.read_from(reading)
        loop.add_reader(control, connection.abort)
        await connection.lost.wait()
        loop.remove_reader(control)
        reading.close()


class _Source(asyncio.Protocol):
    def __init__(self, connection: Connection, out: asyncio.WriteTransport) -> None:
        self._out = out
        self.data_received = connection.data_received  # type: ignore[method-assign]  # passed on as it is

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # why it went makes no difference
        self._out.close()
