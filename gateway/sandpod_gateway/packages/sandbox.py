"""Asks a sandbox for its packages, and has its own Python install wheels there. Called by `installer.py`.

Wheels go as the run's input, in parts, no faster than they are read: nothing of them lies in the workspace or waits in
the runner.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any, Final

from pydantic import ValidationError

from sandpod_api.results import ErrorCode
from sandpod_api.run_results import Language, Outcome
from sandpod_gateway.asking import talking
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.connection import RunnerConnection
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.pip import Wheel
from sandpod_gateway.packages.target import State
from sandpod_gateway.run_ids import new_run
from sandpod_gateway.runner_messages import Ended
from sandpod_gateway.sandboxes import Sandboxes

PART: Final = 256 * 1024  # as in inside.py
AHEAD: Final = 8  # parts that are sent before they were read: far below what the runner keeps of an input
_ANSWER: Final = 1024 * 1024  # most bytes of an answer
_CODE: Final = Path(__file__).with_name("inside.py")


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


class PackagesInside:
    """The packages of sandboxes."""

    def __init__(self, sandboxes: Sandboxes, *, timeout: float) -> None:
        self._sandboxes = sandboxes
        self._timeout = timeout

    async def look(self, record: SandboxRecord) -> State:
        """Return what is installed, and for what Python.

        Raises:
            SandpodError: sandbox_lost, execution_failed.
        """
        return await self._run(record, [])

    async def install(self, record: SandboxRecord, wheels: list[tuple[Wheel, IO[bytes], int]]) -> State:
        """Install wheels, and return what is installed then.

        Args:
            record: The sandbox.
            wheels: Each with its open file and size.

        Raises:
            SandpodError: quota_exceeded (no room), sandbox_lost, execution_failed.
        """
        state = await self._run(record, wheels)
        if state.failure == "full":
            raise SandpodError(
                ErrorCode.QUOTA_EXCEEDED,
                "The sandbox has no room for the packages, which go to its /tmp.",
                next_step="Delete files in /tmp, ask for less, or use a template with a larger /tmp.",
            )
        if state.failure is not None:
            raise _failed(state.failure)
        return state

    async def _run(self, record: SandboxRecord, wheels: list[tuple[Wheel, IO[bytes], int]]) -> State:
        sink = _Sink()
        head = [{"name": wheel.name, "size": size, "sha256": wheel.sha256} for wheel, _, size in wheels]
        async with talking(self._sandboxes, record) as connection:
            if Language.PYTHON not in connection.hello.languages:
                raise SandpodError(
                    ErrorCode.UNSUPPORTED_LANGUAGE,
                    "This sandbox's image has no Python.",
                    next_step="Use a template whose image has it.",
                )
            ended = await self._attend(connection, sink, head, [file for _, file, _ in wheels])
        return _state(sink, ended)

    async def _attend(
        self, connection: RunnerConnection, sink: _Sink, head: list[dict[str, Any]], files: list[IO[bytes]]
    ) -> Ended:
        run = new_run()
        header = {
            "run": run,
            "language": "python",
            "stdin": True,
            "timeout": self._timeout,
            "output_limit": 2 * _ANSWER,
        }
        handle = await connection.start_run(header, await asyncio.to_thread(_CODE.read_bytes), sink)
        try:
            feeding = asyncio.create_task(_feed(connection, run, sink, head, files))
            try:
                return await connection.wait_for(handle.ended)
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        except BaseException:
            await connection.stop_run(run, wait=5)
            raise


async def _feed(
    connection: RunnerConnection, run: str, sink: _Sink, head: list[dict[str, Any]], files: list[IO[bytes]]
) -> None:
    first = json.dumps(head).encode() + b"\n"
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
        part = await asyncio.to_thread(file.read, PART)
        while part:
            following = await asyncio.to_thread(file.read, PART)
            yield part, number == len(files) and not following
            part = following


def _state(sink: _Sink, ended: Ended) -> State:
    if ended.outcome == Outcome.OUT_OF_MEMORY:
        raise SandpodError(
            ErrorCode.QUOTA_EXCEEDED,
            "The sandbox has no memory for the packages: its /tmp is memory.",
            next_step="Ask for less, or use a template with more memory.",
        )
    try:
        return State.model_validate_json(base64.b64decode(bytes(sink.answer).strip(), validate=True))
    except (ValueError, ValidationError) as error:
        detail = ended.detail or f"the installation there ended with {ended.outcome}"
        raise _failed(detail) from error


def _failed(cause: str) -> SandpodError:
    return SandpodError(
        ErrorCode.EXECUTION_FAILED,
        "The packages could not be installed in the sandbox.",
        cause=cause,
        next_step="Try again in a new sandbox.",
    )
