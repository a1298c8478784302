"""What is expected of a runner over one stream, and where each frame that comes goes.

The runner is untrusted: a frame that nobody waits for, or that makes no sense, changes nothing, and a stream that sends
too many of them is over. Each method that takes a frame returns whether somebody waited for it.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pydantic import ValidationError

from sandpod_gateway.backends.base import ByteStream
from sandpod_gateway.runner.messages import Ended, Hello, refusal
from sandpod_gateway.time_slices import Turn
from sandpod_runner.protocol import messages as protocol
from sandpod_runner.protocol.frames import Decoder, Frame, FrameError

logger = logging.getLogger(__name__)

MAX_OFFSET: Final = 2**62  # bytes; more than any program can write
ACK_EVERY: Final = 128 * 1024  # bytes of output for one acknowledgement: a tenth of what a runner has on its way
MAX_MIME: Final = 64  # characters
_STREAMS: Final = ("stdout", "stderr")  # a tuple: what is compared with them may be anything
MAX_SHOWN: Final = protocol.MAX_DISPLAYS + len(protocol.MIME_TYPES)  # a run's displays and forms of its last value
MAX_UNASKED: Final = 1000
"""Frames beyond those that are waited for at which a stream is over. A runner sends some: it answers late."""
SMALL_HEADER: Final = 1024
"""Bytes. A frame that nobody waits for counts once more for each of them: what it costs is to parse its header."""
_LONG: Final = frozenset({"hello", "end", "reply", "error"})
"""Kinds whose headers may be of any length: each comes once for what was asked."""


class ConnectionLostError(Exception):
    """The stream ended while something was going on over it."""


class BrokenProtocolError(ConnectionLostError):
    """The stream was closed because what the sandbox sent is nothing that a runner sends."""


class RunSink(Protocol):
    """Takes what comes of a run. The reader of the stream calls it, so nothing of it may wait or grow without bound."""

    def output(self, stream: str, offset: int, data: bytes) -> None:
        """Take a piece of stdout or stderr, and how many bytes of it came before."""

    def display(self, mime: str, index: int, data: bytes) -> None:
        """Take one form of something that the program showed; forms of one thing have the same index."""

    def result(self, mime: str, data: bytes) -> None:
        """Take one form of the last value."""


class ChannelEnd(Protocol):
    """Takes what comes of a channel; as for a run, nothing of it may wait, or grow without bound."""

    def take(self, frame: Frame) -> bool:
        """Take a frame, and return whether it was expected."""

    def lose(self, error: Exception) -> None:
        """Learn that no more comes over this stream."""


def quiet_future() -> "asyncio.Future[Any]":
    """Return a future whose error nobody has to fetch: runs are given up on without being awaited."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


def _fail(error: Exception, *futures: "asyncio.Future[Any]") -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)


@dataclass(slots=True)
class RunHandle:
    """A run that was asked for.

    `accepted` is the name of the run that goes on: this one, or an earlier one with the same idempotency key. Where
    this request did not start it, nothing of it comes over this stream: `ended` is cancelled.
    """

    run_id: str
    sink: RunSink
    acks: bool = False  # whether what has come is acknowledged
    seen: dict[str, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})  # offset that has come
    fresh: int = 0  # bytes that came since the last acknowledgement
    shown: int = 0  # displays and forms of its last value that have come
    accepted: asyncio.Future[str] = field(default_factory=quiet_future)
    ended: asyncio.Future[Ended] = field(default_factory=quiet_future)


class Inbox:
    """The runs, requests and hello that are waited for over one stream."""

    def __init__(self) -> None:
        self.runs: dict[str, RunHandle] = {}
        self.replies: dict[int, asyncio.Future[Frame]] = {}
        self.channels: dict[str, ChannelEnd] = {}
        self.hello: asyncio.Future[Hello] = quiet_future()
        self.acks_due = asyncio.Event()
        self.heard = asyncio.get_running_loop().time()  # when something came last
        self._takers = {
            "hello": self._greeted,
            "out": self._output,
            **dict.fromkeys(("display", "result"), self._shown),
            **dict.fromkeys(("started", "known"), self._accepted),
            **dict.fromkeys(("reply", "pong", "error"), self._answer),
            "end": self._end,
        }

    def expect_run(self, run_id: str, sink: RunSink, *, acks: bool = False) -> RunHandle:
        """Return the handle of a run that is about to be asked for."""
        handle = RunHandle(run_id, sink, acks)
        self.runs[run_id] = handle
        return handle

    def expect_reply(self, number: int) -> asyncio.Future[Frame]:
        """Return what becomes the reply to a request that is about to be sent."""
        self.replies[number] = quiet_future()
        return self.replies[number]

    def take_acks(self) -> list[dict[str, Any]]:
        """Return the `ack` frames that are due."""
        self.acks_due.clear()
        due = [run for run in self.runs.values() if run.acks and run.fresh >= ACK_EVERY]
        for run in due:
            run.fresh = 0
        return [{"t": "ack", "run": run.run_id, **run.seen} for run in due]

    def lose(self, error: ConnectionLostError) -> None:
        """Give everyone who waits this error: the stream has ended."""
        _fail(error, *(future for run in self.runs.values() for future in (run.accepted, run.ended)))
        _fail(error, *self.replies.values())
        for channel in self.channels.values():
            channel.lose(error)
        self.channels.clear()
        self.runs.clear()
        self.replies.clear()
        _fail(ConnectionLostError(str(error) or "the stream ended before the runner said hello"), self.hello)

    def take(self, frame: Frame) -> bool:
        """Give a frame to whoever waits for it, and return whether somebody did."""
        name = frame.header.get("channel")
        if isinstance(name, str):
            channel = self.channels.get(name)
            return channel is not None and channel.take(frame)
        taker = self._takers.get(frame.kind)
        return taker is not None and taker(frame)

    def _output(self, frame: Frame) -> bool:
        run, stream, offset = self._run(frame.header), frame.header.get("stream"), frame.header.get("offset")
        if run is None or stream not in _STREAMS or not isinstance(offset, int) or not 0 <= offset < MAX_OFFSET:
            return False
        run.sink.output(stream, offset, frame.payload)
        run.seen[stream] = max(run.seen[stream], offset + len(frame.payload))
        run.fresh += len(frame.payload)
        if run.acks and run.fresh >= ACK_EVERY:
            self.acks_due.set()
        return True

    def _shown(self, frame: Frame) -> bool:
        run, mime = self._run(frame.header), frame.header.get("mime")
        if run is None or not isinstance(mime, str) or len(mime) > MAX_MIME or run.shown >= MAX_SHOWN:
            return False
        run.shown += 1
        if frame.kind == "result":
            run.sink.result(mime, frame.payload)
            return True
        index = frame.header.get("index")
        if not isinstance(index, int) or not 0 <= index < protocol.MAX_DISPLAYS:
            return False
        run.sink.display(mime, index, frame.payload)
        return True

    def _accepted(self, frame: Frame) -> bool:
        run = self._run(frame.header)
        if run is None or run.accepted.done():
            return False
        if frame.kind == "started":
            run.accepted.set_result(run.run_id)
            return True
        # Nothing was started, so nothing ends: what becomes of the earlier run is asked for by its own name.
        del self.runs[run.run_id]
        earlier = frame.header.get("as")
        if isinstance(earlier, str) and protocol.RUN_ID.fullmatch(earlier):
            run.accepted.set_result(earlier)
            run.ended.cancel()
        else:
            _fail(ConnectionLostError(), run.accepted, run.ended)
        return True

    def _run(self, header: dict[str, Any]) -> RunHandle | None:
        name = header.get("run")
        return self.runs.get(name) if isinstance(name, str) else None

    def _end(self, frame: Frame) -> bool:
        run = self._run(frame.header)
        if run is None:
            return False
        del self.runs[run.run_id]
        try:
            ended = Ended.model_validate(frame.header)
        except ValidationError as error:
            logger.warning("a runner reported the end of a run in a way that makes no sense: %s", error.error_count())
            _fail(ConnectionLostError(), run.accepted, run.ended)
            return True
        if not run.accepted.done():
            run.accepted.set_result(run.run_id)
        if not run.ended.done():
            run.ended.set_result(ended)
        return True

    def _answer(self, frame: Frame) -> bool:
        number = frame.header.get("id")
        future = self.replies.get(number) if isinstance(number, int) else None
        if future is not None:
            waited = not future.done()
            if waited:
                future.set_result(frame)
            return waited
        run = self._run(frame.header) if frame.kind == "error" else None
        if run is None:
            return False
        del self.runs[run.run_id]
        _fail(refusal(frame, "run"), run.accepted, run.ended)
        return True

    def _greeted(self, frame: Frame) -> bool:
        if self.hello.done():
            return False
        try:
            self.hello.set_result(Hello.model_validate(frame.header))
        except ValidationError:
            self.hello.set_exception(BrokenProtocolError("the runner's hello makes no sense"))
        return True


async def read_frames(stream: ByteStream, inbox: Inbox) -> None:
    """Give the inbox each frame that comes, until the stream or the runner ends it; other tasks run in between.

    Raises BrokenProtocolError: what came is no frame, or too much that nobody waits for.
    """
    decoder, turn, unasked = Decoder(), Turn(), 0
    try:
        while data := await stream.read():
            inbox.heard = asyncio.get_running_loop().time()
            for frame in decoder.feed(data):
                if frame.kind == "bye":
                    return
                expected = decoder.header_size <= SMALL_HEADER or frame.kind in _LONG
                if expected and inbox.take(frame):
                    unasked = max(0, unasked - 1)
                else:
                    unasked += 1 + decoder.header_size // SMALL_HEADER
                    if unasked > MAX_UNASKED:
                        raise BrokenProtocolError("it sent too many frames that nobody asked for")
                if turn.over:
                    await turn.renew()
    except FrameError as error:
        raise BrokenProtocolError(f"it sent what is no frame: {error}") from error
