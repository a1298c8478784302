"""One local sandbox as a process: how it is reached, followed and ended.

The gateway makes the socket that the runner listens on, and the runner inherits it, so that no path of the host has to
be visible inside.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import tempfile
from io import FileIO
from pathlib import Path
from typing import Final

from sandpod_api.conditions import SENTENCES, Reason

logger = logging.getLogger(__name__)

_TAIL: Final = 4096
"""Last bytes of what bubblewrap and the runner said that are kept, to say why a sandbox did not start."""
_INFO_SECONDS: Final = 30.0
_TERM_SECONDS: Final = 3.0
_BACKLOG: Final = 16
CLOSE_TIMEOUT: Final = 2.0  # seconds that the other side gets to read what was sent
_READ: Final = 256 * 1024  # bytes; asyncio buffers at most twice as much before it stops reading


def listen(at_end: contextlib.ExitStack) -> tuple[socket.socket, str]:
    """Return a listening Unix socket that only this process can connect to, and its address; `at_end` closes both.

    On Linux its path is gone before anything is started: the gateway connects through an open file. Elsewhere the path
    stays until the end, in a folder of the gateway's user alone.
    """
    listener = at_end.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    folder = tempfile.TemporaryDirectory(prefix="sandpod-", ignore_cleanup_errors=True)
    place = at_end.enter_context(folder)
    if not hasattr(os, "O_PATH"):
        listener.bind(f"{place}/s")
        listener.listen(_BACKLOG)
        return listener, f"{place}/s"
    # An address holds 108 bytes, so the folder, whose name may be longer, is an open file in it too.
    opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{opened}/s")
        listener.listen(_BACKLOG)
        inode = os.open("s", os.O_PATH | os.O_CLOEXEC, dir_fd=opened)
    finally:
        os.close(opened)
    at_end.callback(os.close, inode)
    folder.cleanup()
    return listener, f"/proc/self/fd/{inode}"


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
        if not closed.done():
            self._writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await closed


class LocalProcess:
    """A started sandbox; implements `in_process.Cell`."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, at_end: contextlib.ExitStack) -> None:
        """Take bubblewrap, or the runner itself where nothing is isolated, and what to close once that has ended."""
        self.at_end = at_end
        self._process = process
        self._address = address
        self._pidfd: int | None = None
        self._tail = b""
        self._reader = asyncio.create_task(self._read_tail())
        self._killed_before = _killed_for_memory()

    async def follow(self, info: FileIO) -> None:
        """Learn which process is PID 1 of the sandbox, to end it by that, from what bubblewrap writes to `info`."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), info
        )
        try:
            async with asyncio.timeout(_INFO_SECONDS):
                data = await reader.read()
        finally:
            transport.close()
        with contextlib.suppress(ValueError, KeyError, ProcessLookupError):  # when bubblewrap failed before
            pid = json.loads(data)["child-pid"]
            pidfd = os.pidfd_open(pid)
            self.at_end.callback(os.close, pidfd)
            # The number may be another process's by now if bubblewrap's child has ended already.
            self._pidfd = pidfd if _parent_of(pid) == self._process.pid else None

    async def connect(self) -> SocketStream:
        """Open a stream to the runner. Raises OSError: the sandbox has ended."""
        return SocketStream(*await asyncio.open_unix_connection(self._address, limit=_READ))

    async def wait(self) -> int:
        """Return the exit code once the sandbox has ended by itself or by `end`; -N or 128 + N for signal N."""
        return await self._process.wait()

    async def ending(self) -> tuple[Reason, str]:
        """Return why it ended, once it has."""
        code = await self.wait()
        if code in {-signal.SIGKILL, 128 + signal.SIGKILL} and _killed_for_memory() > self._killed_before:
            return Reason.OUT_OF_MEMORY, SENTENCES[Reason.OUT_OF_MEMORY]
        logger.info("a runner ended with code %d: %r", code, self.last_words)
        return Reason.POD_FAILED, f"The sandbox's runner ended with code {code}."

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.returncode is not None

    @property
    def last_words(self) -> str:
        """The end of what bubblewrap and the runner said on their standard streams. Untrusted."""
        return self._tail.decode("utf-8", "replace").strip()

    async def end(self) -> None:
        """Kill all that runs in the sandbox and wait until it is gone. May be called more than once."""
        if self._pidfd is not None:
            # PID 1 of the sandbox: the kernel kills the rest of it first. Bubblewrap outside ends after that.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        elif not self.ended:
            await self._terminate()
        await self._process.wait()
        # What was killed before bubblewrap said so may still hold the other end.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TERM_SECONDS):
                await self._reader
        self._pidfd = None
        self.at_end.close()

    async def _terminate(self) -> None:
        """End a runner that is no PID 1: only it knows what it started."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TERM_SECONDS):
                await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _read_tail(self) -> None:
        output = self._process.stdout
        while output is not None and (piece := await output.read(_TAIL)):
            self._tail = (self._tail + piece)[-_TAIL:]


def _parent_of(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        # The name before it can hold anything but is the only field in parentheses.
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    return 0


def _killed_for_memory() -> int:
    """Return how many processes the kernel has killed for want of memory since the machine started."""
    with contextlib.suppress(OSError, KeyError, ValueError):
        return int(dict(map(str.split, Path("/proc/vmstat").read_text("ascii").splitlines()))["oom_kill"])
    return 0
