"""Asks a sandbox for its packages, and has its own Python install some there. Called by the kinds of packages.

Packages go as the run's input, in parts, no faster than they are read: nothing of them lies in the workspace or waits
in the runner.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any, Final, Generic, TypeVar

from pydantic import ValidationError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, Outcome
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.report import Report
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.messages import Ended
from sandpod_gateway.runner.run_ids import new_run
from sandpod_gateway.sandboxes.requests import talking
from sandpod_gateway.sandboxes.service import Sandboxes

PART: Final = 256 * 1024  # as in `inside/stream.py`
AHEAD: Final = 8  # parts that are sent before they were read: far below what the runner keeps of an input
_ANSWER: Final = 1024 * 1024  # most bytes of an answer
_FOLDER: Final = Path(__file__).parent / "inside"
_STREAM: Final = "sandpod_gateway.packages.inside.stream"

# The workspace leaves the path first: a file of the user's may be called as a module that is imported.
_BEFORE: Final = """import sys
del sys.path[0]
import types
module = sys.modules[{name!r}] = types.ModuleType({name!r})
exec({code!r}, vars(module))
"""


S = TypeVar("S", bound=Report)


class _Sink:
    """Takes what the run writes: a dot for each part that it read, then its answer."""

    def __init__(self) -> None:
        self.moved = asyncio.Event()
        self.dots = 0
        self.answer = bytearray()

    def output(self, stream: str, offset: int, data: bytes) -> None:
        del offset
        if stream != "stdout":
            return
        dots = len(data) - len(data.lstrip(b".")) if not self.answer else 0
        self.dots += dots
        self.answer += data[dots : dots + _ANSWER - len(self.answer)]
        self.moved.set()

    def display(self, mime: str, index: int, data: bytes) -> None:
        """Take nothing: it shows nothing."""

    def result(self, mime: str, data: bytes) -> None:
        """Take nothing, as above."""


class PackagesInside(Generic[S]):
    """The packages of sandboxes.

    Args:
        sandboxes: All sandboxes.
        script: The program that is run there.
        state: What it says, checked; `failure` tells why it did not do what it was told to.
        timeout: Seconds that it has.
    """

    def __init__(self, sandboxes: Sandboxes, script: str, state: type[S], *, timeout: float) -> None:
        self._sandboxes = sandboxes
        self._script = script
        self._state = state
        self._timeout = timeout

    async def look(self, record: SandboxRecord) -> S:
        """Return what is installed, and for what.

        Raises:
            SandpodError: sandbox_lost, execution_failed.
        """
        return await self._run(record, None, [])

    async def install(self, record: SandboxRecord, order: Any, files: list[IO[bytes]]) -> S:
        """Install packages, and return what is installed then.

        Args:
            record: The sandbox.
            order: What the program there is told.
            files: Content of the packages, in the order in which that names them.

        Raises:
            SandpodError: quota_exceeded (no room), sandbox_lost, execution_failed.
        """
        state = await self._run(record, order, files)
        if state.failure == "full":
            raise SandpodError(
                ErrorCode.QUOTA_EXCEEDED,
                "The sandbox has no room for the packages, which go to its /tmp.",
                next_step="Delete files in /tmp, ask for less, or use a template with a larger /tmp.",
            )
        if state.failure is not None:
            raise _failed(state.failure)
        return state

    async def _run(self, record: SandboxRecord, order: Any, files: list[IO[bytes]]) -> S:
        sink = _Sink()
        async with talking(self._sandboxes, record) as connection:
            if Language.PYTHON not in connection.hello.languages:
                raise SandpodError(
                    ErrorCode.UNSUPPORTED_LANGUAGE,
                    "This sandbox's image has no Python, which packages are unpacked with.",
                    next_step="Use a template whose image has it.",
                )
            ended = await self._attend(connection, sink, order, files)
        return self._answer(sink, ended)

    def _answer(self, sink: _Sink, ended: Ended) -> S:
        if ended.outcome == Outcome.OUT_OF_MEMORY:
            raise SandpodError(
                ErrorCode.QUOTA_EXCEEDED,
                "The sandbox has no memory for the packages: its /tmp is memory.",
                next_step="Ask for less, or use a template with more memory.",
            )
        try:
            return self._state.model_validate_json(base64.b64decode(bytes(sink.answer).strip(), validate=True))
        except (ValueError, ValidationError) as error:
            detail = ended.detail or f"the installation there ended with {ended.outcome}"
            raise _failed(detail) from error

    async def _attend(self, connection: RunnerConnection, sink: _Sink, order: Any, files: list[IO[bytes]]) -> Ended:
        run = new_run()
        header = {
            "run": run,
            "language": "python",
            "stdin": True,
            "timeout": self._timeout,
            "output_limit": 2 * _ANSWER,
        }
        handle = await connection.start_run(header, await asyncio.to_thread(_program, self._script), sink)
        try:
            feeding = asyncio.create_task(_feed(connection, run, sink, order, files))
            try:
                return await connection.wait_for(handle.ended)
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        except BaseException:
            await connection.stop_run(run, wait=5)
            raise


async def _feed(connection: RunnerConnection, run: str, sink: _Sink, order: Any, files: list[IO[bytes]]) -> None:
    first = json.dumps(order).encode() + b"\n"
    await connection.send_input(run, first, 0, last=not files)
    sent = 0
    async for part, last in _parts(files):
        offset, sent = len(first) + sent, sent + len(part)
        while sent - sink.dots * PART > AHEAD * PART:
            sink.moved.clear()
            await sink.moved.wait()
        await connection.send_input(run, part, offset, last=last)


async def _parts(files: list[IO[bytes]]) -> AsyncIterator[tuple[bytes, bool]]:
    for number, file in enumerate(files, 1):
        await asyncio.to_thread(file.seek, 0)  # the same content may be in several places
        part = await asyncio.to_thread(file.read, PART)
        while part:
            following = await asyncio.to_thread(file.read, PART)
            yield part, number == len(files) and not following
            part = following


def _program(script: str) -> bytes:
    before = _BEFORE.format(name=_STREAM, code=(_FOLDER / "stream.py").read_text(encoding="utf-8"))
    return before.encode() + (_FOLDER / script).read_bytes()


def _failed(cause: str) -> SandpodError:
    return SandpodError(
        ErrorCode.EXECUTION_FAILED,
        "The packages could not be installed in the sandbox.",
        cause=cause,
        next_step="Try again in a new sandbox.",
    )
