"""One local sandbox as a process: how it is reached, followed and ended."""

import asyncio
import contextlib
import json
import logging
import os
import signal
from pathlib import Path
from typing import Final

from sandpod_api.conditions import SENTENCES, Reason
from sandpod_gateway.backends.local.socket import Listener, SocketStream, connect

logger = logging.getLogger(__name__)

_TAIL: Final = 4096
"""Last bytes of what bubblewrap and the runner said that are kept, to say why a sandbox did not start."""
_INFO_SECONDS: Final = 30.0
_TERM_SECONDS: Final = 3.0


class LocalProcess:
    """A started sandbox; implements `in_process.Cell`.

    Args:
        process: Bubblewrap, or the runner itself where nothing is isolated.
        listener: The socket that the runner listens on.
        lifeline: An open file to close when the sandbox has ended; see `init.py`.

    Attributes:
        at_end: What is given back once the sandbox has ended.
    """

    def __init__(self, process: asyncio.subprocess.Process, listener: Listener, lifeline: int) -> None:
        self.at_end = contextlib.ExitStack()
        self.at_end.callback(os.close, lifeline)
        self.at_end.callback(listener.close)
        self._process = process
        self._address = listener.address
        self._pidfd: int | None = None
        self._tail = b""
        self._reader = asyncio.create_task(self._read_tail())
        self._killed_before = _killed_for_memory()

    async def follow(self, info: int) -> None:
        """Learn which process is PID 1 of the sandbox, to end it by that, from what bubblewrap writes to `info`."""
        self._pidfd = await _first_process(info, self._process.pid)
        if self._pidfd is not None:
            self.at_end.callback(os.close, self._pidfd)

    async def connect(self) -> SocketStream:
        """Open a stream to the runner. Raises OSError: the sandbox has ended."""
        return await connect(self._address)

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


async def _first_process(info: int, parent: int) -> int | None:
    """Return an open file of the sandbox's PID 1, which is bubblewrap's child, or None when it failed before.

    Bubblewrap writes to `info`, which is closed here.
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
    if _parent_of(pid) == parent:
        return pidfd
    os.close(pidfd)
    return None


def _parent_of(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        # The name before it can hold anything but is the only field in parentheses.
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    return 0


def _killed_for_memory() -> int:
    """Return how many processes the kernel has killed for want of memory since the machine started."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/vmstat").read_text("ascii").splitlines()
        return int(next(line for line in lines if line.startswith("oom_kill ")).split()[1])
    return 0
