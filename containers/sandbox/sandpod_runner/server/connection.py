"""Streams to the gateway, which is not trusted: what is no frame ends its stream and no other.

Nothing is kept without bound: while frames out pile up, programs' output stays in their pipes. A stream in a pod is the
standard streams of the gateway's exec, two pipes that `attach` has handed over: no process stands between. The socket
that they came over stays open: its end is the exec's.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sandpod_runner.files.artifacts import MAX_KNOWN
from sandpod_runner.files.operations import Listing, Reply
from sandpod_runner.files.server import FileServer
from sandpod_runner.output.output_log import STREAMS
from sandpod_runner.protocol import messages
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.fields import request_id, require, run_name, seconds, whole
from sandpod_runner.protocol.frames import Decoder, Frame, FrameError, encode
from sandpod_runner.runs.delivery import Delivery
from sandpod_runner.runs.registry import Runs

logger = logging.getLogger(__name__)

HIGH_WATER: Final = 256 * 1024  # bytes to send from which on programs have to wait
LOW_WATER: Final = 64 * 1024
_REQUESTS: Final = frozenset({"file", "ping", "tail", "list", "usage", "artifacts", "restart"})
"""Kinds of frames that are answered by their number."""
MAX_UNREAD: Final = 32 * 1024 * 1024
"""Bytes to send at which a stream is given up: its reader keeps asking and does not read the answers."""
TAIL_BYTES: Final = 64 * 1024  # of output in an answer, where no other limit is named
MAX_TAIL: Final = 1024 * 1024  # largest limit, bytes
MAX_TAIL_WAIT: Final = 30.0  # seconds
MAX_TAILS: Final = 64  # requests of one stream that wait at a time
SETTLE = 0.005
"""Seconds in which a request that waited gathers what comes after the first output: a line often comes in several
writes, and the end of a short program right behind its last line."""
_PIECES: Final = 1024
_PATIENCE: Final = 5.0  # seconds in which a peer that connects must say why
_PIPES: Final = 2


class Connection(asyncio.Protocol):
    """One stream."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._decoder = Decoder()
        self._files = FileServer(runs.toolbox.storage, self._answer, self._hold)
        self._tails: set[asyncio.Task[None]] = set()  # answers that wait for output
        self._transport: asyncio.Transport | None = None
        self.source: asyncio.ReadTransport | None = None  # where frames come from, which may be another transport
        self._handlers: dict[str, Callable[[Frame], None]] = {
            "run": lambda frame: runs.start(frame.header, frame.payload, self),
            "stdin": lambda frame: runs.feed(frame.header, frame.payload),
            "cancel": lambda frame: runs.cancel(run_name(frame.header)),
            "follow": lambda frame: runs.follow(frame.header, self),
            "ack": lambda frame: runs.acknowledge(frame.header, self),
            "file": self._files.submit,
            "ping": lambda frame: self._reply(frame, {"runs": runs.names}, kind="pong"),
            "tail": self._tail,
            "list": lambda frame: self._reply(frame, runs.describe()),
            "usage": lambda frame: self._reply(frame, runs.usage()),
            "artifacts": self._list_artifacts,
            "restart": lambda frame: runs.restart(frame.header.get("context"), partial(self._reply, frame, {})),
            **dict.fromkeys(messages.CHANNEL_FRAMES, self._channel),
        }
        self._greeted = False
        self.can_send = True  # whether programs' output may come
        self.lost = asyncio.Event()  # whether it has ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - tells the type checker what kind of stream it is
        transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        self._transport = self.source = transport
        self.send({"t": "hello", "version": messages.VERSION, **self._runs.hello})

    def data_received(self, data: bytes) -> None:
        """Do what the frames ask for."""
        try:
            for frame in self._decoder.feed(data):
                if self._transport is None or self._transport.is_closing():
                    return
                self._take(frame)
        except FrameError as error:
            self.send({"t": "error", "code": "invalid_argument", "message": f"That is no frame: {error}."})
            self.close()

    def pause_writing(self) -> None:
        """Let programs wait."""
        self._flow(can_send=False)

    def resume_writing(self) -> None:
        """Let output come again."""
        self._flow(can_send=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave its runs without an owner."""
        del exc  # why it went makes no difference
        self._transport = self.source = None
        self.lost.set()
        self.can_send = True
        self._files.close()
        for task in self._tails:
            task.cancel()
        self._runs.orphan(self)

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame, unless the stream has gone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > MAX_UNREAD:
            logger.warning("a stream was given up: its reader does not read")
            transport.abort()
            return
        transport.write(encode(header, payload))

    def close(self) -> None:
        """Close the stream after what is still to be sent."""
        if self._transport is not None:
            self._transport.close()

    def leave(self) -> None:
        """End the stream, as its exec has, and say so: a node does not report the end of every exec that is killed."""
        if self._transport is not None and not self._transport.get_write_buffer_size():
            self.send({"t": "bye"})
        self.abort()

    def abort(self) -> None:
        """End the stream at once, unless it ends already and has nothing more to send."""
        transport = self._transport
        if transport is not None and (not transport.is_closing() or transport.get_write_buffer_size()):
            transport.abort()

    def _take(self, frame: Frame) -> None:
        try:
            if not self._greeted:
                self._greet(frame)
                return
            require(frame.kind in self._handlers, "Unknown kind of frame.")
            if frame.kind in _REQUESTS:
                request_id(frame.header)  # what can't be answered is not done
            self._handlers[frame.kind](frame)
        except Refusal as refusal:
            self._refuse(frame, refusal)
        except Exception:
            logger.exception("a frame could not be handled")
            self._refuse(frame, Refusal("backend_error", "The request failed inside the runner."))

    def _reply(self, frame: Frame, fields: dict[str, Any], kind: str = "reply") -> None:
        self.send({"t": kind, "id": request_id(frame.header), **fields})

    def _channel(self, frame: Frame) -> None:
        from sandpod_runner.channels import registry  # noqa: PLC0415 - few sandboxes have any: it would slow all starts

        registry.take(self._runs, frame, self)

    def _tail(self, frame: Frame) -> None:
        """Answer with what a run has written since a cursor, at once or when there is something."""
        header, delivery = frame.header, self._runs.delivery(run_name(frame.header))
        cursor, limit = whole(header, "cursor"), whole(header, "limit", TAIL_BYTES, MAX_TAIL)
        wait = seconds(header, "wait", 0.0, MAX_TAIL_WAIT)
        require(limit, "limit must be a whole number of bytes over 0.")
        require(cursor <= delivery.log.end, "The run has not written so much.")
        answer = partial(self._answer_tail, request_id(header), delivery, cursor, limit)
        if cursor < delivery.log.end or delivery.end is not None or not wait:
            answer()
        elif len(self._tails) >= MAX_TAILS:
            raise Refusal("session_busy", f"{MAX_TAILS} requests already wait, which is the maximum.")
        else:
            task = asyncio.get_running_loop().create_task(_wait(wait, delivery, cursor, answer))
            self._tails.add(task)
            task.add_done_callback(self._tails.discard)

    def _answer_tail(self, number: int, delivery: Delivery, cursor: int, limit: int) -> None:
        reading = delivery.log.read(cursor, limit, _PIECES)
        fields = {
            "state": "live" if delivery.end is None else "ended",
            "cursor": reading.cursor,
            "dropped": reading.dropped,
            "pieces": [[STREAMS[stream], len(data)] for stream, _, data in reading.pieces],
            "end": delivery.end,
        }
        self._answer(number, (fields, b"".join(data for _, _, data in reading.pieces)))

    def _list_artifacts(self, frame: Frame) -> None:
        listing = Listing(MAX_KNOWN, [])
        for entry in self._runs.toolbox.storage.artifacts.list(frame.header.get("since")):
            if not listing.add(entry):
                break
        self._reply(frame, {"entries": listing.entries, "truncated": listing.truncated})

    def _greet(self, frame: Frame) -> None:
        self._greeted = frame.kind == "hello" and frame.header.get("version") == messages.VERSION
        if not self._greeted:
            message = f"A stream begins with hello, version {messages.VERSION}."
            self._refuse(frame, Refusal("invalid_argument", message))
            self.close()

    def _refuse(self, frame: Frame, refusal: Refusal) -> None:
        about = "id" if frame.kind in _REQUESTS else "channel" if frame.kind in messages.CHANNEL_FRAMES else "run"
        value = frame.header.get(about)
        known = {about: value} if isinstance(value, int | str) and len(str(value)) <= 64 else {}  # noqa: PLR2004 - as RUN_ID
        self.send({"t": "error", **known, "code": refusal.code, "message": refusal.message})

    def _answer(self, number: int, answer: Reply | Refusal) -> None:
        if isinstance(answer, Refusal):
            self.send({"t": "error", "id": number, "code": answer.code, "message": answer.message})
        else:
            self.send({"t": "reply", "id": number, **answer[0]}, answer[1])

    def _hold(self, held: bool) -> None:  # noqa: FBT001 - the one thing it is about
        if self.source is not None and not self.source.is_closing():
            self.source.pause_reading() if held else self.source.resume_reading()

    def _flow(self, *, can_send: bool) -> None:
        self.can_send = can_send
        self._files.sendable(can_send)
        self._runs.flow(self)


async def _wait(longest: float, delivery: Delivery, cursor: int, answer: Callable[[], None]) -> None:
    """Answer when there is output after the cursor and what follows it at once, at the run's end, or after so long."""
    more = asyncio.Event()
    delivery.watchers.add(more.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                while cursor == delivery.log.end and delivery.end is None:
                    await more.wait()
                    more.clear()
            async with asyncio.timeout(SETTLE):
                while delivery.end is None:
                    await more.wait()
                    more.clear()
    finally:
        delivery.watchers.discard(more.set)
    answer()


async def join(control: socket.socket, connect: Callable[[], Connection]) -> None:
    """Serve a peer until it leaves: an exec that hands over its pipes, or a probe. The socket is closed here."""
    with control:
        try:
            async with asyncio.timeout(_PATIENCE):
                await _readable(control)
                data, fds, _, _ = socket.recv_fds(control, len(messages.HANDED_OVER), _PIPES, socket.MSG_CMSG_CLOEXEC)
        except (OSError, TimeoutError):
            return
        if data == messages.HANDED_OVER and len(fds) == _PIPES:
            await _serve(control, connect(), *fds)
            return
        for fd in fds:
            os.close(fd)
        if data == messages.READY:
            control.send(messages.READY)


async def _readable(sock: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)


async def _serve(control: socket.socket, connection: Connection, read_fd: int, write_fd: int) -> None:
    """Serve one stream over both pipes, which ends when either of them or the exec does."""
    loop = asyncio.get_running_loop()
    with os.fdopen(read_fd, "rb", buffering=0) as source, os.fdopen(write_fd, "wb", buffering=0) as target:
        try:
            out, _ = await loop.connect_write_pipe(lambda: connection, target)
            reading, _ = await loop.connect_read_pipe(lambda: _Source(connection, out), source)
        except (OSError, ValueError) as error:  # one of them is no pipe
            logger.warning("a stream is refused: %s", error)
            connection.abort()
            return
        connection.source = reading
        loop.add_reader(control, connection.leave)
        await connection.lost.wait()
        loop.remove_reader(control)
        reading.close()


class _Source(asyncio.Protocol):
    def __init__(self, connection: Connection, out: asyncio.WriteTransport) -> None:
        self._out = out
        self.data_received = connection.data_received  # type: ignore[method-assign]  # passed on as it is

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # why it went makes no difference
        self._out.close()
