"""One local sandbox as a process: how it is reached, followed and ended.

Made by `local_start.py`, used by `local.py`. Who may use it, and for how long, is decided in `in_process.py`.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Final

from sandpod_gateway.backends.local.socket import Listener, SocketStream, connect

_TAIL: Final = 4096
"""Last bytes of what bubblewrap and the runner said that are kept, to tell why a sandbox did not start."""
_INFO_SECONDS: Final = 30.0
_TERM_SECONDS: Final = 3.0


class LocalProcess:
    """A started sandbox.

    Args:
        process: Bubblewrap, or the runner itself where nothing is isolated.
        listener: The socket that the runner listens on.
        lifeline: An open file to close when the sandbox has ended; see `init.py`.
    """

    def __init__(self, process: asyncio.subprocess.Process, listener: Listener, lifeline: int) -> None:
        self._process = process
        self._listener = listener
        self._lifeline: int | None = lifeline
        self._pidfd: int | None = None
        self._tail = bytearray()
        self._reader = asyncio.create_task(self._read_tail())
        self._folder: Path | None = None

    async def follow(self, info: int) -> None:
        """Learn from bubblewrap which process is PID 1 of the sandbox, to end it by that.

        Args:
            info: Where bubblewrap writes it; closed here.
        """
        self._pidfd = await _first_process(info, self._process.pid)

    def owns(self, folder: Path) -> None:
        """Remove the folder when the sandbox has ended."""
        self._folder = folder

    async def connect(self) -> SocketStream:
        """Open a stream to the runner.

        Raises:
            OSError: The sandbox has ended.
        """
        return await connect(self._listener.address)

    async def wait(self) -> int:
        """Return the exit code once the sandbox has ended by itself or by `end`; -N or 128 + N for signal N."""
        return await self._process.wait()

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
        # What was killed before bubblewrap told of it may still hold the other end.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TERM_SECONDS):
                await self._reader
        self._close()

    async def _terminate(self) -> None:
        """End a runner that is no PID 1: only it knows what it started."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TERM_SECONDS):
                await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _close(self) -> None:
        self._listener.close()
        for descriptor in (self._pidfd, self._lifeline):
            if descriptor is not None:
                os.close(descriptor)
        self._pidfd = self._lifeline = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def _read_tail(self) -> None:
        output = self._process.stdout
        while output is not None and (piece := await output.read(_TAIL)):
            self._tail = (self._tail + piece)[-_TAIL:]


async def _first_process(info: int, parent: int) -> int | None:
    """Return an open file of the sandbox's PID 1, or None when bubblewrap failed before there was one.

    Args:
        info: Where bubblewrap writes; closed here.
        parent: Bubblewrap's own process id.
    """
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(info, "rb", buffering=0)
    )
    try:
        async with asyncio.timeout(_INFO_SECONDS):
            data = await reader.read()
    finally:
        transport.close()
    try:
        pid = json.loads(data)["child-pid"]
        pidfd = os.pidfd_open(pid)
    except (ValueError, KeyError, ProcessLookupError):
        return None
    # The number may be another process's by now if that one has ended already.
    if _parent_of(pid) != parent:
        os.close(pidfd)
        return None
    return pidfd


def _parent_of(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        # The name before it can hold anything but is the only field in parentheses.
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
        )
    return 0
