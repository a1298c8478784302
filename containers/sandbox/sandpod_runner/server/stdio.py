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

logger = logging.getLogger(__name__)

_PATIENCE: Final = 5.0  # seconds that somebody who connects has to say what for
_PIPES: Final = 2


async def join(control: socket.socket, connect: Callable[[], asyncio.Protocol]) -> None:
    """Serve who has connected: an exec that hands its pipes over, or a probe. The socket is closed in the end."""
    try:
        async with asyncio.timeout(_PATIENCE):
            await _readable(control)
            data, fds, _, _ = socket.recv_fds(control, len(HANDED_OVER), _PIPES, socket.MSG_CMSG_CLOEXEC)
    except (OSError, TimeoutError):
        control.close()
        return
    if data == HANDED_OVER and len(fds) == _PIPES:
        await _Standard(control, connect()).open(*fds)
        return
    for fd in fds:
        os.close(fd)
    with control:
        if data == READY:
            control.send(READY)


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)


class _Standard(asyncio.Transport):
    """Both pipes as one transport, which ends when either of them or the exec does."""

    def __init__(self, control: socket.socket, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._protocol = protocol
        self._in: asyncio.ReadTransport | None = None
        self._out: asyncio.WriteTransport

    async def open(self, read_fd: int, write_fd: int) -> None:
        # The descriptors are closed with the transport, or at once where one of them is no pipe.
        source, target = os.fdopen(read_fd, "rb", buffering=0), os.fdopen(write_fd, "wb", buffering=0)
        try:
            out, _ = await self._loop.connect_write_pipe(lambda: _Out(self, self._protocol), target)
        except (OSError, ValueError) as error:
            logger.warning("a stream is refused: %s", error)
            for each in (source, target, self._control):
                each.close()
            return
        self._out, self.write, self.close = out, out.write, out.close  # type: ignore[method-assign]
        self.is_closing = out.is_closing  # type: ignore[method-assign]
        self.get_write_buffer_size = out.get_write_buffer_size  # type: ignore[method-assign]
        self.set_write_buffer_limits = out.set_write_buffer_limits  # type: ignore[method-assign]
        self._protocol.connection_made(self)
        try:
            self._in, _ = await self._loop.connect_read_pipe(lambda: _In(self, self._protocol), source)
        except (OSError, ValueError) as error:
            logger.warning("a stream is refused: %s", error)
            source.close()
            self.abort()
        else:
            self._loop.add_reader(self._control, self.abort)

    def pause_reading(self) -> None:
        if self._in is not None:
            self._in.pause_reading()

    def resume_reading(self) -> None:
        if self._in is not None:
            self._in.resume_reading()

    def abort(self) -> None:
        # Unless it ends already and has nothing more to send.
        if not self.is_closing() or self.get_write_buffer_size():
            self._out.abort()

    def lost(self, error: Exception | None) -> None:
        if self._in is not None:
            self._in.close()
        self._loop.remove_reader(self._control)
        self._control.close()
        self._protocol.connection_lost(error)


class _Out(asyncio.BaseProtocol):
    def __init__(self, whole: _Standard, protocol: asyncio.Protocol) -> None:
        self._whole = whole
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]  # passed on as it is
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def connection_lost(self, exc: Exception | None) -> None:
        self._whole.lost(exc)


class _In(asyncio.Protocol):
    def __init__(self, whole: _Standard, protocol: asyncio.Protocol) -> None:
        self._whole = whole
        self.data_received = protocol.data_received  # type: ignore[method-assign]  # passed on as it is

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # why it went makes no difference
        self._whole.close()
