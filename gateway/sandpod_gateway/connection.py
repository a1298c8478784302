"""One stream to a sandbox's runner, shared by all that goes on in that sandbox: runs, files, pings.

Called by `sandboxes.py`, which keeps one for each sandbox in use. The other end is untrusted: every frame is checked,
what does not fit is dropped or ends the connection, and nothing that comes can make this side wait or grow.
"""

import asyncio
import contextlib
import itertools
import logging
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pydantic import ValidationError

from sandpod_gateway.backends.base import ByteStream
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner_messages import Ended, Hello, refusal
from sandpod_runner import protocol
from sandpod_runner.frames import Decoder, Frame, FrameError, encode

logger = logging.getLogger(__name__)

HELLO_TIMEOUT: Final = 10.0  # seconds; a runner answers in milliseconds once it listens
REQUEST_TIMEOUT: Final = 60.0  # seconds for one file request: the disk of a busy node is behind it

MAX_OFFSET: Final = 2**62  # bytes; more than any program can write
MAX_MIME: Final = 64  # characters


class RunSink(Protocol):
    """Takes what comes of a run. Called by the connection's reader, so nothing of it may wait or grow without bound."""

    def output(self, stream: str, offset: int, data: bytes) -> None:
        """Take a piece of stdout or stderr, and how many bytes of it came before."""
        ...

    def display(self, mime: str, data: bytes) -> None:
        """Take something that the program showed."""
        ...

    def result(self, mime: str, data: bytes) -> None:
        """Take one form of the last value."""
        ...


class ConnectionLostError(Exception):
    """The stream ended while something was going on over it."""


@dataclass(slots=True)
class RunHandle:
    """A run that was started: its end comes as the future's result."""

    run_id: str
    sink: RunSink
    ended: asyncio.Future[Ended]


@dataclass(slots=True)
class _Requests:
    """What waits for an answer of the runner, by the number or name that the answer carries."""

    runs: dict[str, RunHandle] = field(default_factory=dict)
    files: dict[int, asyncio.Future[Frame]] = field(default_factory=dict)

    def fail_all(self) -> None:
        for handle in self.runs.values():
            if not handle.ended.done():
                handle.ended.set_exception(ConnectionLostError())
        for future in self.files.values():
            if not future.done():
                future.set_exception(ConnectionLostError())
        self.runs.clear()
        self.files.clear()


class RunnerConnection:
    """A multiplexer over one byte stream. Make it with `open_connection`."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._requests = _Requests()
        self._numbers = itertools.count(1)
        self._write_lock = asyncio.Lock()
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read())
        self.closed = False
        self.bytes_received = 0

    @property
    def hello(self) -> Hello:
        """What the runner said when the stream was opened."""
        return self._hello.result()

    @property
    def busy(self) -> int:
        """Runs that go on over this connection."""
        return len(self._requests.runs)

    async def greet(self) -> None:
        """Say hello and wait for the answer.

        Raises:
            ConnectionLostError: There was none in time, or it is not one that this gateway understands.
        """
        try:
            await self._send({"t": "hello", "version": protocol.VERSION})
            async with asyncio.timeout(HELLO_TIMEOUT):
                hello = await asyncio.shield(self._hello)
        except TimeoutError as error:
            raise ConnectionLostError("the runner did not say hello") from error
        if hello.version != protocol.VERSION:
            raise ConnectionLostError(f"the runner speaks version {hello.version}, not {protocol.VERSION}")

    async def start_run(self, header: dict[str, Any], code: bytes, sink: RunSink) -> RunHandle:
        """Start a program.

        Args:
            header: The fields of a `run` frame.
            code: The program, UTF-8.
            sink: Takes what comes of it.

        Raises:
            ConnectionLostError: The stream has ended.
        """
        run_id: str = header["run"]
        handle = RunHandle(run_id, sink, asyncio.get_running_loop().create_future())
        # A run that is given up on without being awaited must not warn when it ends.
        handle.ended.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._requests.runs[run_id] = handle
        await self._send({"t": "run", **header}, code)
        return handle

    async def send_stdin(self, run_id: str, data: bytes) -> None:
        """Send a program all of its input, then end of input."""
        for start in range(0, len(data), protocol.FILE_PART):
            await self._send({"t": "stdin", "run": run_id, "eof": False}, data[start : start + protocol.FILE_PART])
        await self._send({"t": "stdin", "run": run_id, "eof": True})

    async def stop_run(self, run_id: str, *, wait: float) -> bool:
        """End a run, and tell whether it has ended.

        Args:
            run_id: The run; it need not exist any more.
            wait: Seconds to wait for its end.
        """
        handle = self._requests.runs.get(run_id)
        if handle is None:
            return True
        try:
            await self._send({"t": "cancel", "run": run_id})
            async with asyncio.timeout(wait):
                await asyncio.shield(handle.ended)
        except (TimeoutError, ConnectionLostError):
            return False
        except SandpodError:
            return True  # it was refused, so it never began
        return True

    async def ping(self) -> Frame:
        """Return the runner's `pong`.

        Raises:
            ConnectionLostError: The stream has ended, or the runner does not answer.
        """
        return await self._request({"t": "ping"}, [b""])

    async def file(self, op: str, fields: dict[str, Any], parts: list[bytes] | None = None) -> Frame:
        """Return the runner's reply to a file request.

        Args:
            op: The operation, as in `sandpod_runner.protocol`.
            fields: The operation's fields.
            parts: The content to write, in parts of at most FILE_PART bytes.

        Raises:
            SandpodError: The runner refused, with its code.
            ConnectionLostError: The stream has ended, or the runner does not answer.
        """
        reply = await self._request({"t": "file", "op": op, **fields}, parts or [b""])
        if reply.kind == "error":
            raise refusal(reply)
        return reply

    async def close(self) -> None:
        """Close the stream; whatever goes on over it is told that it is lost."""
        await self._stream.close()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        self._lose()

    async def _request(self, header: dict[str, Any], parts: list[bytes]) -> Frame:
        number = next(self._numbers)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._requests.files[number] = future
        try:
            for index, part in enumerate(parts):
                await self._send({**header, "id": number, "last": index == len(parts) - 1}, part)
            async with asyncio.timeout(REQUEST_TIMEOUT):
                return await future
        except TimeoutError as error:
            raise ConnectionLostError("the runner does not answer") from error
        finally:
            self._requests.files.pop(number, None)

    async def _send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        if self.closed:
            raise ConnectionLostError
        data = encode(header, payload)
        try:
            async with self._write_lock:
                await self._stream.write(data)
        except ConnectionError as error:
            raise ConnectionLostError from error

    async def _read(self) -> None:
        decoder = Decoder()
        try:
            while data := await self._stream.read():
                self.bytes_received += len(data)
                for frame in decoder.feed(data):
                    self._take(frame)
        except FrameError as error:
            logger.warning("a sandbox sent what is no frame: %s", error)
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("reading from a sandbox failed")
        finally:
            self._lose()
            await self._stream.close()

    def _lose(self) -> None:
        self.closed = True
        self._requests.fail_all()
        if not self._hello.done():
            self._hello.set_exception(ConnectionLostError("the stream ended before the runner said hello"))
            self._hello.exception()

    def _take(self, frame: Frame) -> None:
        header = frame.header
        match frame.kind:
            case "out" | "display" | "result":
                self._pass_on(frame)
            case "end":
                self._end(header)
            case "reply" | "pong" | "error":
                self._answer(frame)
            case "hello":
                self._greeted(header)
            case _:
                pass  # `started`, and kinds of later versions: nothing here waits for them

    def _pass_on(self, frame: Frame) -> None:
        run = self._run(frame.header)
        if run is None:
            return
        if frame.kind == "out":
            stream, offset = frame.header.get("stream"), frame.header.get("offset")
            if stream in {"stdout", "stderr"} and isinstance(offset, int) and 0 <= offset < MAX_OFFSET:
                run.sink.output(stream, offset, frame.payload)
            return
        mime = frame.header.get("mime")
        if isinstance(mime, str) and len(mime) <= MAX_MIME:
            (run.sink.display if frame.kind == "display" else run.sink.result)(mime, frame.payload)

    def _run(self, header: dict[str, Any]) -> RunHandle | None:
        name = header.get("run")
        return self._requests.runs.get(name) if isinstance(name, str) else None

    def _end(self, header: dict[str, Any]) -> None:
        run = self._run(header)
        if run is None:
            return
        del self._requests.runs[run.run_id]
        if run.ended.done():
            return
        try:
            run.ended.set_result(Ended.model_validate(header))
        except ValidationError as error:
            logger.warning("a runner told the end of a run in a way that makes no sense: %s", error.error_count())
            run.ended.set_exception(ConnectionLostError())

    def _answer(self, frame: Frame) -> None:
        number = frame.header.get("id")
        future = self._requests.files.get(number) if isinstance(number, int) else None
        if future is not None:
            if not future.done():
                future.set_result(frame)
            return
        run = self._run(frame.header)
        if run is not None and frame.kind == "error":
            del self._requests.runs[run.run_id]
            if not run.ended.done():
                run.ended.set_exception(refusal(frame))

    def _greeted(self, header: dict[str, Any]) -> None:
        if self._hello.done():
            return
        try:
            self._hello.set_result(Hello.model_validate(header))
        except ValidationError:
            self._hello.set_exception(ConnectionLostError("the runner's hello makes no sense"))


async def open_connection(stream: ByteStream) -> RunnerConnection:
    """Return a connection whose runner has said hello.

    Raises:
        ConnectionLostError: The runner did not; the stream is closed.
    """
    connection = RunnerConnection(stream)
    try:
        await connection.greet()
    except BaseException:
        await connection.close()
        raise
    return connection
