"""Has a sandbox's own Python report its packages and install others.

The program for that and the packages are a run's input. They are sent no faster than they are read: nothing of them
lies in the workspace or waits in the runner.
"""

import asyncio
import base64
import functools
import io
import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any, Final, Generic, TypeVar

from pydantic import ValidationError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, Outcome
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.report import MAX_DETAIL, Failure, Report
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.messages import Ended
from sandpod_gateway.runner.run_ids import new_run
from sandpod_gateway.sandboxes.requests import talking
from sandpod_gateway.sandboxes.service import Sandboxes

PART: Final = 256 * 1024  # as in `inside/stream.py`
AHEAD: Final = 8  # parts that are sent before they were read: far below what the runner keeps of an input
_ANSWER: Final = 1024 * 1024  # most bytes of an answer
_FOLDER: Final = Path(__file__).parent / "inside"
BOOTSTRAP: Final = _FOLDER / "bootstrap.py"
_PACKAGES: Final = ("sandpod_gateway", "sandpod_gateway/packages", "sandpod_gateway/packages/inside")


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
        program: The module of `inside` that is run there.
        state: The model of its report.
        timeout: Seconds that it has.
    """

    def __init__(self, sandboxes: Sandboxes, program: str, state: type[S], *, timeout: float) -> None:
        self._sandboxes = sandboxes
        self._program = program
        self._state = state
        self._timeout = timeout

    async def look(self, record: SandboxRecord) -> S:
        """Return what is installed, and for what.

        Raises:
            SandpodError: sandbox_lost, execution_failed.
        """
        return await self._run(record, None, [])

    async def install(self, record: SandboxRecord, order: Any, files: list[IO[bytes]]) -> S:
        """Install packages, all of them or none, and return what is installed then.

        Args:
            record: The sandbox.
            order: What the program there is told.
            files: Content of the packages, in the order in which that names them.

        Raises:
            SandpodError: quota_exceeded (no room), sandbox_lost, execution_failed.
        """
        state = await self._run(record, order, files)
        if state.failure is not None:
            raise state.failure.error()
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
                "The sandbox ran out of memory while it unpacked the packages; files in its /tmp count as memory too.",
                next_step="Delete files in /tmp, install fewer packages, or use a template with more memory.",
            )
        try:
            return self._state.model_validate_json(base64.b64decode(bytes(sink.answer).strip(), validate=True))
        except (ValueError, ValidationError) as error:
            detail = ended.detail or f"the program there ended with {ended.outcome}"
            raise Failure(reason="sandbox", detail=detail[:MAX_DETAIL]).error() from error

    async def _attend(self, connection: RunnerConnection, sink: _Sink, order: Any, files: list[IO[bytes]]) -> Ended:
        run = new_run()
        header = {
            "run": run,
            "language": "python",
            "args": [self._program],
            "stdin": True,
            "timeout": self._timeout,
            "output_limit": 2 * _ANSWER,
        }
        handle = await connection.start_run(header, BOOTSTRAP.read_bytes(), sink)
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
    first = await asyncio.to_thread(opening, order)
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


def opening(order: Any) -> bytes:
    """Return the input of a program in a sandbox up to the packages: its modules, and the order."""
    modules = _modules()
    return b"%d\n%b%b\n" % (len(modules), modules, json.dumps(order).encode())


@functools.cache
def _modules() -> bytes:
    """Return the modules of `inside` as a zip file that Python imports from."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            archive.writestr(f"{package}/__init__.py", "")
        for path in _FOLDER.glob("[!_]*.py"):
            archive.write(path, f"{_PACKAGES[-1]}/{path.name}")
    return data.getvalue()
