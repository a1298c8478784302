"""A program that goes on in a sandbox while its packages are resolved and downloaded, and the words with it.

Such a run is the sandbox's own record of an installation: any gateway can read how it went. It lasts as long as the
gateway that carries the installation out: where that has gone, the runner ends it after some seconds.
"""

import asyncio
import base64
import contextlib
import json
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final, Generic

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, Outcome
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.errors import Failure
from sandpod_gateway.packages.sandbox import BOOTSTRAP, DETAIL, LINE, PART, S, opening
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.demux import ConnectionLostError, RunHandle
from sandpod_gateway.runner.messages import Ended
from sandpod_gateway.runner.run_ids import LOOK, new_run
from sandpod_gateway.sandboxes.requests import sandbox_lost
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_runner.protocol import messages as protocol

logger = logging.getLogger(__name__)

AHEAD: Final = 8  # parts that are sent before they were read: far below the runner's buffer
OUTPUT: Final = 4 * LINE  # most bytes that a program writes: two reports, the result, and dots
_STREAMS: Final = 5  # that a program may use: each may be lost with the API server or the network to it
_PAUSE: Final = 1.0  # seconds before the next one; the runner keeps a run without a stream for 10 of them
_STOP_WAIT: Final = 2.0  # seconds


class Output:
    """What a program writes: a dot for each part of packages that it has read, and lines."""

    def __init__(self) -> None:
        self.moved = asyncio.Event()  # set whenever there is more
        self.dots = 0
        self.lines: deque[bytes] = deque()
        self._rest = b""
        self._room = OUTPUT

    def output(self, stream: str, offset: int, data: bytes) -> None:
        """Take a piece of it."""
        del offset
        if stream != "stdout":
            return
        data, self._room = data[: self._room], max(0, self._room - len(data))
        self.dots += data.count(b".")
        *lines, self._rest = (self._rest + data.replace(b".", b"")).split(b"\n")
        self.lines += filter(None, lines)
        self.moved.set()

    def display(self, mime: str, index: int, data: bytes) -> None:
        """Ignore it: the program displays nothing."""

    def result(self, mime: str, data: bytes) -> None:
        """Ignore it, as above."""


@dataclass(frozen=True, slots=True)
class Program(Generic[S]):
    """A program of `inside`: its module, the model of its report, and the seconds that it has for each step."""

    sandboxes: Sandboxes
    module: str
    model: type[S]
    timeout: float

    async def report(self, record: SandboxRecord) -> S:
        """Return the report of what is installed. Raises sandbox_lost, execution_failed or unsupported_language."""
        talk = Talk(self, record, new_run(LOOK))
        try:
            await talk.begin(installing=False, seconds=self.timeout)
            report = await talk.report()
            await talk.ended()
            return report
        finally:
            await talk.close()


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a program's input, and how many bytes of it come before."""

    offset: int
    data: bytes
    last: bool


@dataclass(eq=False, slots=True)
class Talk(Generic[S]):
    """A program that goes on in a sandbox: what it is told, what it reports, over another stream where one is lost.

    Its methods raise what it failed with, or sandbox_lost.
    """

    program: Program[S]
    record: SandboxRecord
    run: str  # its name, as the runner knows it
    _output: Output = field(default_factory=Output)
    _size: int = 0  # bytes of input so far
    _unread: deque[_Part] = field(default_factory=deque)  # those that the program may not have got
    _connection: RunnerConnection | None = None
    _handle: RunHandle | None = None
    _attending: asyncio.Task[Ended] | None = None
    _listens: bool = False  # whether it reads a line next
    _ordered: bool = False  # whether it was told what to install

    async def begin(self, *, installing: bool, seconds: float, key: str | None = None) -> None:
        """Start the program. The runner ends it where nobody attends to it any more, and after so many seconds.

        Raises unsupported_language too, or why the sandbox does not start it.
        """
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        header: dict[str, Any] = {"run": self.run, "language": "python", "args": [self.program.module], "stdin": True}
        header |= {"timeout": seconds, "output_limit": OUTPUT} | ({"key": key} if key is not None else {})
        self._attending = asyncio.create_task(self._attend(header, begun))
        self._attending.add_done_callback(self._left)
        either: set[asyncio.Future[Any]] = {self._attending, begun}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            self._attending.result()
        await self._send(await asyncio.to_thread(opening, installing=installing))

    async def report(self) -> S:
        """Return its next report; after a failure that it reports it ends."""
        output = self._output
        while not output.lines and not self._over:
            output.moved.clear()
            await output.moved.wait()
        if not output.lines:
            raise failure_of(await self.ended())
        self._unread.clear()
        try:
            report = self.program.model.model_validate_json(base64.b64decode(output.lines.popleft(), validate=True))
        except ValueError as error:
            raise Failure.SANDBOX_BROKEN.error(cause="the program there does not report what it should") from error
        if report.failure is not None:
            raise report.failure.error()
        self._listens = True
        return report

    async def install(self, order: dict[str, Any], files: Sequence[IO[bytes]]) -> S:
        """Have it install the order's packages, all or none, whose content is in `files`; return its next report."""
        self._listens, self._ordered = False, True
        try:
            async with asyncio.timeout(self.program.timeout):
                room = self._connection.hello.packages_bytes if self._connection is not None else None
                await self._send(json.dumps({**order, "room": room}).encode() + b"\n")
                await self._feed(files)
                return await self.report()
        except TimeoutError as error:
            raise Failure.SANDBOX_SLOW.error() from error

    async def finish(self, result: bytes) -> None:
        """Tell it the result, a line that it writes last, and wait until it has ended. One that can't listen is ended.

        Its last line says then how the installation went, or its end does.
        """
        try:
            if self._listens and not self._over:
                line = b"%b%b\n" % (b"" if self._ordered else b"null\n", result)
                async with asyncio.timeout(_STOP_WAIT):
                    await self._send(line, last=True)
                    await self.ended()
        except (TimeoutError, SandpodError) as error:
            logger.warning("a sandbox does not take the result of an installation: %r", error)
        finally:
            await self.close()

    async def close(self) -> None:
        """End it, if it has not ended."""
        if self._attending is not None and not self._over:
            if self._connection is not None:
                await self._connection.stop_run(self.run, wait=_STOP_WAIT)
            self._attending.cancel()
            await asyncio.gather(self._attending, return_exceptions=True)

    async def ended(self) -> Ended:
        """Wait until it has ended."""
        if self._attending is None:
            raise RuntimeError("it was not begun")
        return await asyncio.shield(self._attending)

    @property
    def _over(self) -> bool:
        return self._attending is None or self._attending.done()

    def _left(self, attending: "asyncio.Task[Ended]") -> None:
        self._output.moved.set()
        if not attending.cancelled():
            attending.exception()  # whoever needs the end gets it; it may be nobody

    async def _attend(self, header: dict[str, Any], begun: "asyncio.Future[None]") -> Ended:
        """See the program to its end. The runner waits some seconds for another stream where one is lost."""
        lost = ConnectionLostError()
        for _ in range(_STREAMS):
            try:
                async with self.program.sandboxes.connection(self.record) as connection:
                    return await self._attend_over(connection, header, begun)
            except ConnectionLostError as error:
                lost = error
                if not begun.done() or self.program.sandboxes.is_closing(self.record.name):
                    break
            except SandpodError as error:
                if not begun.done() or error.code != ErrorCode.BACKEND_UNAVAILABLE:
                    raise
            await asyncio.sleep(_PAUSE)
        raise sandbox_lost(lost)

    async def _attend_over(
        self, connection: RunnerConnection, header: dict[str, Any], begun: "asyncio.Future[None]"
    ) -> Ended:
        try:
            if self._handle is None:
                if Language.PYTHON not in connection.hello.languages:
                    raise _no_python()
                self._connection = connection
                self._handle = await connection.start_run(header, BOOTSTRAP.read_bytes(), self._output)
                await connection.wait_for(self._handle.accepted)
                begun.set_result(None)
            else:
                self._handle = await connection.follow_run(self.run, dict(self._handle.seen), self._output)
                await self._send_again(connection)
            return await connection.wait_for(self._handle.ended)
        finally:
            connection.runs.pop(self.run, None)

    async def _send(self, data: bytes, *, last: bool = False) -> None:
        for start in range(0, len(data), protocol.FILE_PART):
            piece = data[start : start + protocol.FILE_PART]
            part = _Part(self._size, piece, last and start + len(piece) == len(data))
            self._size += len(piece)
            self._unread.append(part)
            if self._connection is not None:
                with contextlib.suppress(ConnectionLostError):  # it is sent again over the next one
                    await self._connection.send_input(self.run, part.data, part.offset, last=part.last)

    async def _send_again(self, connection: RunnerConnection) -> None:
        """Send what may be lost; what the program has already the runner leaves out."""
        sent = -1
        while part := next((part for part in self._unread if part.offset > sent), None):
            await connection.send_input(self.run, part.data, part.offset, last=part.last)
            sent = part.offset
        self._connection = connection

    def _forget(self, read: int) -> None:
        """Forget what the program has read for sure."""
        while self._unread and self._unread[0].offset + len(self._unread[0].data) <= read:
            self._unread.popleft()

    async def _feed(self, files: Sequence[IO[bytes]]) -> None:
        """Send packages, no faster than they are read."""
        output, begin = self._output, self._size
        for file in files:
            await asyncio.to_thread(file.seek, 0)  # the same content may be in several places
            while part := await asyncio.to_thread(file.read, PART):
                while self._size - begin + len(part) - output.dots * PART > AHEAD * PART:
                    if self._over or output.lines:
                        return  # it has failed
                    output.moved.clear()
                    await output.moved.wait()
                if output.dots:  # else it may not even have the order
                    self._forget(begin + output.dots * PART)
                await self._send(part)


def failure_of(ended: Ended) -> SandpodError:
    """Return why there are no packages where a program has ended without a word of it."""
    match ended.outcome:
        case Outcome.OUT_OF_MEMORY:
            return Failure.SANDBOX_MEMORY.error()
        case Outcome.CANCELLED:
            return Failure.INTERRUPTED.error()
        case Outcome.TIMEOUT:
            return Failure.SANDBOX_SLOW.error()
    detail = ended.detail or f"the program there ended with {ended.outcome}"
    return Failure.SANDBOX_BROKEN.error(cause=detail[:DETAIL])


def _no_python() -> SandpodError:
    message = "This sandbox's image has no Python, which packages are unpacked with."
    return SandpodError(ErrorCode.UNSUPPORTED_LANGUAGE, message, next_step="Use a template whose image has it.")
