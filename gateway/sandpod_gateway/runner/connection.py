"""One stream to a sandbox's runner, shared by all that goes on in that sandbox: runs, files, pings.

The other end is untrusted: nothing that comes can make this side wait or grow.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, TypeVar

from sandpod_gateway.backends.base import ByteStream
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.demux import (
    BrokenProtocolError,
    ConnectionLostError,
    Inbox,
    RunHandle,
    RunSink,
    read_frames,
)
from sandpod_gateway.runner.messages import Hello, refusal
from sandpod_runner.protocol import messages as protocol
from sandpod_runner.protocol.frames import Frame, encode

T = TypeVar("T")

logger = logging.getLogger(__name__)

HELLO_TIMEOUT: Final = 10.0  # seconds; a runner answers in milliseconds once it listens
QUIET: Final = 10.0  # seconds without a word after which the runner is asked whether it is still there
PONG_TIMEOUT: Final = 10.0  # seconds; with every processor taken by programs an answer may take a while
REQUEST_TIMEOUT: Final = 60.0  # seconds for one request: the disk of a busy node is behind it
WRITE_TIMEOUT: Final = 60.0  # seconds in which the runner takes something of what was sent before, as above


class RunnerConnection:
    """A multiplexer over one byte stream. Make it with `open_connection`.

    Whatever needs the stream raises ConnectionLostError once it has ended.
    """

    hello: Hello  # what the runner said when the stream was opened
    on_broken: Callable[[], None] | None = None  # called once if the stream ends before it is closed here

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._inbox = Inbox()
        self.runs = self._inbox.runs  # those that are waited for; one that is taken out goes on in the background
        self.channels = self._inbox.channels  # the ends here
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()  # held while a frame is sent
        self._aborts: set[asyncio.Task[None]] = set()
        self._lost: ConnectionLostError | None = None  # why nothing can be sent any more
        self._reader = asyncio.create_task(self._read())
        self._acks = asyncio.create_task(self._acknowledge())

    @property
    def closed(self) -> bool:
        """Whether the stream has ended."""
        return self._lost is not None

    async def _send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame, whole or not at all: one that is cancelled is not sent."""
        if self.closed:
            raise self._lost or ConnectionLostError()
        data = encode(header, payload)
        try:
            async with self._lock, asyncio.timeout(WRITE_TIMEOUT):
                await self._stream.write(data)
        except ConnectionError as error:
            raise self._lost or ConnectionLostError() from error
        except TimeoutError as error:
            lost = ConnectionLostError("the runner does not read what it is sent")
            self._lose(lost)
            await self._stream.close()
            raise lost from error

    async def send_of_channel(self, kind: str, name: str, fields: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame about a channel."""
        await self._send({"t": kind, "channel": name, **fields}, payload)

    async def _abort(self, header: dict[str, Any]) -> None:
        with contextlib.suppress(ConnectionLostError):
            await self._send({**header, "abort": True, "last": True})

    async def greet(self) -> None:
        """Say hello and wait for an answer that this gateway understands. Raises ConnectionLostError."""
        try:
            await self._send({"t": "hello", "version": protocol.VERSION})
            async with asyncio.timeout(HELLO_TIMEOUT):
                self.hello = await asyncio.shield(self._inbox.hello)
        except TimeoutError as error:
            raise ConnectionLostError("the runner did not say hello") from error
        if self.hello.version != protocol.VERSION:
            raise BrokenProtocolError(f"the runner speaks version {self.hello.version}, not {protocol.VERSION}")

    async def start_run(self, header: dict[str, Any], code: bytes, sink: RunSink) -> RunHandle:
        """Ask for a run with the fields of a `run` frame."""
        handle = self._inbox.expect_run(header["run"], sink, acks=header.get("acks", False))
        await self._send({"t": "run", **header}, code)
        return handle

    async def follow_run(
        self, run_id: str, received: dict[str, int], sink: RunSink, *, acks: bool = False
    ) -> RunHandle:
        """Take over a run that was started on another stream; `received` is how many bytes of each stream came there.

        With `acks` the runner learns what has come, and keeps what has not.
        """
        handle = self._inbox.expect_run(run_id, sink, acks=acks)
        handle.seen.update(received)
        await self._send({"t": "follow", "run": run_id, **received, "acks": acks})
        return handle

    async def send_stdin(self, run_id: str, data: bytes) -> None:
        """Send a program all of its input, then end of input; what it has already is not given to it twice."""
        for start in range(0, len(data), protocol.FILE_PART):
            await self.send_input(run_id, data[start : start + protocol.FILE_PART], start, last=False)
        await self.send_input(run_id, b"", len(data), last=True)

    async def send_input(self, run_id: str, part: bytes, offset: int | None, *, last: bool) -> None:
        """Send a program at most FILE_PART bytes of its input, which begin at an offset, and its end after the last.

        Without an offset they are what comes next.
        """
        where = {} if offset is None else {"offset": offset}
        await self._send({"t": "stdin", "run": run_id, "eof": last, **where}, part)

    async def cancel(self, run_id: str) -> None:
        """Ask the runner to end a run, whoever started it."""
        await self._send({"t": "cancel", "run": run_id})

    async def stop_run(self, run_id: str, *, wait: float) -> bool:
        """End a run of this connection, and return whether it has ended after at most `wait` seconds."""
        if (handle := self.runs.get(run_id)) is None:
            return True
        try:
            with contextlib.suppress(SandpodError):  # it was refused, so it never began
                await self.cancel(run_id)
                async with asyncio.timeout(wait):
                    await asyncio.shield(handle.ended)
        except (TimeoutError, ConnectionLostError):
            return False
        return True

    async def ask(self, kind: str, fields: dict[str, Any] | None = None) -> Frame:
        """Return the runner's reply to a frame, of a kind as in `sandpod_runner.protocol.messages`, with those fields.

        Raises the runner's refusal, or ConnectionLostError: it does not answer.
        """
        with self._request() as (number, future):
            await self._send({"t": kind, **(fields or {}), "id": number})
            return await self._reply(future, (fields or {}).get("op", kind))

    async def upload(self, fields: dict[str, Any], parts: AsyncIterator[bytes]) -> Frame:
        """Write a file from parts of at most FILE_PART bytes as they come; return the runner's reply to the last one.

        Raises the runner's refusal, what `parts` raises, or ConnectionLostError: it does not answer.
        """
        with self._request() as (number, future):
            header = {"t": "file", "op": "write", **fields, "id": number}
            held: bytes | None = None
            try:
                async for part in parts:
                    if held is not None:
                        await self._send({**header, "last": False}, held)
                    held = part
                    if future.done():
                        break  # refused already
                await self._send({**header, "last": True}, held or b"")
                return await self._reply(future, "write")
            except BaseException:
                if not future.done():  # it was cancelled, or failed, and can't wait
                    task = asyncio.create_task(self._abort(header))
                    self._aborts.add(task)
                    task.add_done_callback(self._aborts.discard)
                raise

    @contextlib.contextmanager
    def _request(self) -> Iterator[tuple[int, "asyncio.Future[Frame]"]]:
        """Give a request's number, and what becomes the reply to it."""
        number = next(self._numbers)
        try:
            yield number, self._inbox.expect_reply(number)
        finally:
            self._inbox.replies.pop(number, None)

    async def _reply(self, future: "asyncio.Future[Frame]", request: str) -> Frame:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                reply = await self.wait_for(future)
        except TimeoutError as error:
            raise ConnectionLostError("the runner does not answer") from error
        if reply.kind == "error":
            raise refusal(reply, request)
        return reply

    async def wait_for(self, future: "asyncio.Future[T]") -> T:
        """Return a future's result; a stream that has gone silent without being closed is closed meanwhile."""
        now = asyncio.get_running_loop().time
        began = now()
        while not future.done():
            quiet = now() - max(began, self._inbox.heard)
            if quiet >= QUIET:
                await self._check()
            else:
                await asyncio.wait({future}, timeout=QUIET - quiet)
        return future.result()

    async def _check(self) -> None:
        """Ask the runner whether it is there, and close the stream where no answer comes."""
        try:
            with self._request() as (number, pong):
                async with asyncio.timeout(PONG_TIMEOUT):
                    await self._send({"t": "ping", "id": number})
                    await pong
        except TimeoutError:
            logger.warning("a sandbox's stream has gone silent and is closed")
            self._lose(ConnectionLostError())
            await self.close()

    async def _acknowledge(self) -> None:
        """Send the runner how much of its runs' output has come: the reader never waits for the other side to read."""
        with contextlib.suppress(ConnectionLostError):
            while True:
                await self._inbox.acks_due.wait()
                for header in self._inbox.take_acks():
                    await self._send(header)

    async def close(self) -> None:
        """Close the stream; whatever goes on over it is lost."""
        self.on_broken = None
        await self._stream.close()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        self._lose(ConnectionLostError())

    async def _read(self) -> None:
        lost = ConnectionLostError()
        try:
            await read_frames(self._stream, self._inbox)
        except BrokenProtocolError as error:
            logger.warning("a sandbox's stream is closed: %s", error)
            lost = error
        except Exception:
            logger.exception("reading from a sandbox failed")
        finally:
            self._lose(lost)
            await self._stream.close()

    def _lose(self, error: ConnectionLostError) -> None:
        if self._lost is None:
            self._lost = error
            if self.on_broken is not None:
                self.on_broken()
            if self._acks is not asyncio.current_task():  # which may be the one that found the stream to be over
                self._acks.cancel()
            self._inbox.lose(error)


async def open_connection(stream: ByteStream) -> RunnerConnection:
    """Return a connection whose runner has said hello. Raises ConnectionLostError, and closes the stream."""
    connection = RunnerConnection(stream)
    try:
        await connection.greet()
    except BaseException:
        await connection.close()
        raise
    return connection
