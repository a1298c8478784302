"""Runs programs in a sandbox as its caller's code, over the runner's stream, and takes the facts that they print."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from typing import Any, Final

from sandpod_gateway.backends.base import Backend
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.connection import RunnerConnection, open_connection
from sandpod_gateway.runner.demux import ConnectionLostError
from sandpod_gateway.verify.model import Facts, Untried

SECONDS: Final = 60.0  # for one program
_GRACE: Final = 20.0  # until its end is known
_OUTPUT: Final = 2**20  # bytes that are kept
_INSIDE: Final = "sandpod_gateway.verify.inside"
_NUMBERS: Final = itertools.count(1)


@cache
def source(name: str) -> str:
    """Return a program of `inside` as a text of its own: what it imports from there comes before it."""
    folder = files(_INSIDE)
    tools = (folder / "tools.py").read_text(encoding="utf-8")
    body = (folder / f"{name}.py").read_text(encoding="utf-8")
    return (
        "import sys, types\n"
        f"_tools = types.ModuleType({_INSIDE + '.tools'!r})\n"
        f"exec({tools!r}, _tools.__dict__)\n"
        f"sys.modules[_tools.__name__] = _tools\n{body}"
    )


def facts_of(output: str) -> Facts | Untried:
    """Return what a program told: the last line of its output."""
    line = output.strip().rpartition("\n")[2]
    try:
        found = json.loads(line)
    except ValueError:
        return Untried(f"The program did not get to its end: {line[-200:] or 'it printed nothing'}")
    return found if isinstance(found, dict) else Untried("The program's answer makes no sense.")


class _Sink:
    """Keeps the end of what a run prints."""

    def __init__(self) -> None:
        self.text = bytearray()
        self.first = asyncio.Event()

    def output(self, stream: str, offset: int, data: bytes) -> None:
        del offset
        if stream == "stdout" or not self.text:
            self.text += data
            del self.text[:-_OUTPUT]
            if b"\n" in data:
                self.first.set()

    def display(self, mime: str, index: int, data: bytes) -> None:
        """Nothing is shown."""

    def result(self, mime: str, data: bytes) -> None:
        """There is no value."""


class Programs:
    """Runs programs over one stream to a sandbox."""

    def __init__(self, connection: RunnerConnection) -> None:
        self.connection = connection

    async def run(self, code: str, argument: Any = None, *, seconds: float = SECONDS) -> tuple[str, str]:
        """Run a program to its end; return its outcome and its output.

        Raises SandpodError or ConnectionLostError: the sandbox is gone, or has no Python.
        """
        sink = _Sink()
        handle = await self.connection.start_run(_header(argument, seconds), code.encode(), sink)
        async with asyncio.timeout(seconds + _GRACE):
            ended = await self.connection.wait_for(handle.ended)
        return ended.outcome, sink.text.decode("utf-8", "replace")

    async def facts(self, name: str, argument: Any = None, *, seconds: float = SECONDS) -> Facts | Untried:
        """Return what a program of `inside` tells."""
        try:
            _, output = await self.run(source(name), argument, seconds=seconds)
        except (SandpodError, ConnectionLostError, TimeoutError) as error:
            return Untried(f"The program {name} could not be run: {str(error) or 'it took too long'}")
        return facts_of(output)

    @asynccontextmanager
    async def running(self, name: str, *arguments: str) -> AsyncIterator[str]:
        """Run a program while the block lasts, which begins with the first line that it prints."""
        sink, header = _Sink(), _header(None, SECONDS * 5)
        header["args"] = list(arguments)
        await self.connection.start_run(header, source(name).encode(), sink)
        try:
            async with asyncio.timeout(SECONDS):
                await sink.first.wait()
            yield sink.text.decode("utf-8", "replace").partition("\n")[0]
        finally:
            await self.connection.stop_run(header["run"], wait=_GRACE)


def _header(argument: Any, seconds: float) -> dict[str, Any]:
    return {
        "run": f"verify-{next(_NUMBERS)}",
        "language": "python",
        "args": [] if argument is None else [json.dumps(argument)],
        "env": {},
        "cwd": ".",
        "stdin": False,
        "timeout": seconds,
        "output_limit": 2**31 - 1,
        "detached": False,
    }


@asynccontextmanager
async def programs(backend: Backend, sandbox: str) -> AsyncIterator[Programs]:
    """Open a stream to a sandbox. Raises SandpodError or ConnectionLostError: there is none."""
    connection = await open_connection(await backend.open_stream(sandbox))
    try:
        yield Programs(connection)
    finally:
        await connection.close()
