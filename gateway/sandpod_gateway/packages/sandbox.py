"""Has a sandbox's own Python report and install packages. A sandbox is untrusted: its report is checked.

The program and the packages are a run's input, which is sent no faster than it is read: nothing of it lies in the
workspace or piles up in the runner.
"""

import asyncio
import base64
import functools
import io
import json
import zipfile
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, Outcome
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.errors import Failure
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.messages import Ended
from sandpod_gateway.runner.run_ids import new_run
from sandpod_gateway.sandboxes.requests import talking
from sandpod_gateway.sandboxes.service import Sandboxes

MAX_PACKAGES: Final = 5000
PART: Final = 256 * 1024  # as in `inside/stream.py`
AHEAD: Final = 8  # parts that are sent before they were read: far below the runner's buffer
_ANSWER: Final = 1024 * 1024  # most bytes of an answer
_DETAIL: Final = 300  # most characters of a reason
_FOLDER: Final = Path(__file__).parent / "inside"
BOOTSTRAP: Final = _FOLDER / "bootstrap.py"
_PACKAGES: Final = ("sandpod_gateway", "sandpod_gateway/packages", "sandpod_gateway/packages/inside")
_FAILURES: Final = {"room": Failure.SANDBOX_FULL, "package": Failure.UNPACKING, "sandbox": Failure.SANDBOX_BROKEN}

Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9.+!_-]{1,128}$")]
Sha256 = Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")]


class Untrusted(BaseModel):
    """A part of what a sandbox, an index or a registry says; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class InstalledPackage(Untrusted):
    """A package in a sandbox, as `PackageInfo` has it."""

    version: Version
    sha256: Sha256 = None
    source: Literal["installed", "image"] = "image"


class ReportedFailure(Untrusted):
    """Why an installation failed and was undone: too little room, the content of a package, or the sandbox."""

    reason: Literal["room", "package", "sandbox"]
    detail: Annotated[str, Field(max_length=_DETAIL)]


class Report(Untrusted):
    """What a program of `inside` reports."""

    failure: ReportedFailure | None = None

    @property
    @abstractmethod
    def packages(self) -> dict[str, InstalledPackage]:
        """The packages that code in the sandbox can import, by name."""


S = TypeVar("S", bound=Report)


class _Sink:
    """Takes the run's output: a dot for each part that it read, then its report."""

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
        """Ignore it: the program displays nothing."""

    def result(self, mime: str, data: bytes) -> None:
        """Ignore it, as above."""


@dataclass(frozen=True, slots=True)
class Program(Generic[S]):
    """A program of `inside`: its module, the model of its report, and the seconds that it has."""

    sandboxes: Sandboxes
    module: str
    model: type[S]
    timeout: float

    async def run(self, record: SandboxRecord, order: Any = None, files: Sequence[IO[bytes]] = ()) -> S:
        """Install packages, all of them or none, and return the report of what is installed then.

        `order` says what is to be installed, None for nothing; `files` are the packages in the same order. Raises
        quota_exceeded (no room), sandbox_lost, execution_failed or unsupported_language.
        """
        sink = _Sink()
        async with talking(self.sandboxes, record) as connection:
            if Language.PYTHON not in connection.hello.languages:
                message = "This sandbox's image has no Python, which packages are unpacked with."
                step = "Use a template whose image has it."
                raise SandpodError(ErrorCode.UNSUPPORTED_LANGUAGE, message, next_step=step)
            first = await asyncio.to_thread(opening, order and {**order, "room": connection.hello.packages_bytes})
            ended = await self._attend(connection, sink, first, files)
        if ended.outcome == Outcome.OUT_OF_MEMORY:
            raise Failure.SANDBOX_MEMORY.error()
        try:
            report = self.model.model_validate_json(base64.b64decode(bytes(sink.answer).strip(), validate=True))
        except ValueError as error:
            detail = ended.detail or f"the program there ended with {ended.outcome}"
            raise Failure.SANDBOX_BROKEN.error(cause=detail[:_DETAIL]) from error
        if report.failure is not None:
            raise _FAILURES[report.failure.reason].error(cause=report.failure.detail)
        return report

    async def _attend(
        self, connection: RunnerConnection, sink: _Sink, first: bytes, files: Sequence[IO[bytes]]
    ) -> Ended:
        run = new_run()
        limits = {"timeout": self.timeout, "output_limit": 2 * _ANSWER}
        header = {"run": run, "language": "python", "args": [self.module], "stdin": True, **limits}
        handle = await connection.start_run(header, BOOTSTRAP.read_bytes(), sink)
        try:
            feeding = asyncio.create_task(_feed(connection, run, sink, first, files))
            try:
                return await connection.wait_for(handle.ended)
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        except BaseException:
            await connection.stop_run(run, wait=5)
            raise


async def _feed(connection: RunnerConnection, run: str, sink: _Sink, first: bytes, files: Sequence[IO[bytes]]) -> None:
    await connection.send_input(run, first, 0, last=False)
    sent = 0
    for file in files:
        await asyncio.to_thread(file.seek, 0)  # the same content may be in several places
        while part := await asyncio.to_thread(file.read, PART):
            while sent + len(part) - sink.dots * PART > AHEAD * PART:
                sink.moved.clear()
                await sink.moved.wait()
            await connection.send_input(run, part, len(first) + sent, last=False)
            sent += len(part)
    await connection.send_input(run, b"", len(first) + sent, last=True)


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
