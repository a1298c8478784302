"""A gateway as a process on this machine, started by its command line. Called by tests and by the benchmark."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

START_SECONDS = 60
PROGRAM = str(Path(sys.executable).with_name("sandpod"))


class StartError(RuntimeError):
    """The gateway ended before it was ready; the text is what it said."""


@asynccontextmanager
async def serving(*flags: str, prefix: tuple[str, ...] = ()) -> AsyncIterator[tuple[str, int]]:
    """Start `sandpod serve` on a free port; gives the MCP endpoint that it prints, and its process id.

    Args:
        flags: Its options.
        prefix: A command that becomes the one that follows it.

    Raises:
        StartError: It ended instead.
    """
    server = await asyncio.create_subprocess_exec(
        *prefix, PROGRAM, "serve", "--port", "0", *flags, stderr=asyncio.subprocess.PIPE
    )
    try:
        url, said = await _ready(server)
        if url is None:
            raise StartError(said)
        # Read on, so that a full pipe never stops it.
        assert server.stderr is not None
        drain = asyncio.create_task(server.stderr.read())
        yield url, server.pid
        drain.cancel()
    finally:
        if server.returncode is None:
            server.terminate()
            await server.wait()


async def _ready(server: asyncio.subprocess.Process) -> tuple[str | None, str]:
    """Return the endpoint once it is printed, or None and all that was said when the process ended."""
    assert server.stderr is not None
    said = ""
    async with asyncio.timeout(START_SECONDS):
        while line := (await server.stderr.readline()).decode():
            said += line
            if "is ready: " in line:
                return line.rsplit("is ready: ", 1)[1].strip(), said
    await server.wait()
    return None, said
