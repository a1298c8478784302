"""One stream to the gateway, which is not trusted: what is no frame ends its stream and no other.

Nothing is kept without bound: while frames out pile up, programs' output stays in their pipes.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sandpod_runner.files.artifacts import MAX_KNOWN
from sandpod_runner.files.operations import Listing, Reply
from sandpod_runner.files.server import FileServer, Storage
from sandpod_runner.protocol import messages
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.fields import flag, request_id, require, run_name, whole
from sandpod_runner.protocol.frames import Decoder, Frame, FrameError, encode
from sandpod_runner.runs.registry import Runs
from sandpod_runner.server.tails import Tails

logger = logging.getLogger(__name__)

HIGH_WATER: Final = 256 * 1024  # bytes to send from which on programs have to wait
LOW_WATER: Final = 64 * 1024
_REQUESTS: Final = frozenset({"file", "ping", "tail", "list", "artifacts", "restart"})
"""Kinds of frames that are answered by their number."""
MAX_UNREAD: Final = 32 * 1024 * 1024
"""Bytes to send at which a stream is given up: its reader asks and asks and does not read the answers."""


@dataclass(frozen=True, slots=True)
class Service:
    """What all streams share."""

    runs: Runs
    storage: Storage
    languages: dict[str, str]
    memory_limit: int | None


class Connection(asyncio.Protocol):
    """One stream."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._decoder = Decoder()
        self._files = FileServer(service.storage, self._answer, self._hold)
        self._tails = Tails(self.send)
        self._transport: asyncio.Transport | None = None
        self._source: asyncio.ReadTransport | None = None
        self._handlers = self._table()
        self._greeted = False
        self.can_send = True  # whether programs' output may come
        self.lost = asyncio.Event()  # whether it has ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - tells the type checker what kind of stream it is
        transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        self._transport = self._source = transport
        service, root = self._service, self._service.storage.workspace.root
        known = {"languages": service.languages, "workspace": root, "memory_limit": service.memory_limit}
        self.send({"t": "hello", "version": messages.VERSION, **known, "runs": service.runs.names})

    def read_from(self, source: asyncio.ReadTransport) -> None:
        """Note what frames come from, if that is not what they are sent to."""
        self._source = source

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
        self._transport = self._source = None
        self.lost.set()
        self.can_send = True
        self._files.close()
        self._tails.close()
        self._service.runs.orphan(self)

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

    def _table(self) -> dict[str, Callable[[Frame], None]]:
        """Return what handles each kind of frame."""
        runs = self._service.runs
        return {
            "run": lambda frame: runs.start(frame.header, frame.payload, self),
            "stdin": self._feed,
            "cancel": lambda frame: runs.cancel(run_name(frame.header)),
            "follow": lambda frame: runs.follow(frame.header, self),
            "ack": lambda frame: runs.acknowledge(frame.header, self),
            "file": self._files.submit,
            "ping": lambda frame: self._reply(frame, {"runs": runs.names}, kind="pong"),
            "tail": lambda frame: self._tails.ask(frame.header, runs.delivery(run_name(frame.header))),
            "list": lambda frame: self._reply(frame, runs.describe()),
            "artifacts": self._list_artifacts,
            "restart": lambda frame: runs.restart(frame.header.get("context"), partial(self._reply, frame, {})),
        }

    def _reply(self, frame: Frame, fields: dict[str, Any], kind: str = "reply") -> None:
        self.send({"t": kind, "id": request_id(frame.header), **fields})

    def _list_artifacts(self, frame: Frame) -> None:
        listing = Listing(MAX_KNOWN, [])
        for entry in self._service.storage.artifacts.list(frame.header.get("since")):
            if not listing.add(entry):
                break
        self._reply(frame, {"entries": listing.entries, "truncated": listing.truncated})

    def _greet(self, frame: Frame) -> None:
        self._greeted = frame.kind == "hello" and frame.header.get("version") == messages.VERSION
        if not self._greeted:
            message = f"A stream begins with hello, version {messages.VERSION}."
            self._refuse(frame, Refusal("invalid_argument", message))
            self.close()

    def _feed(self, frame: Frame) -> None:
        header = frame.header
        eof = flag(header, "eof")
        try:
            run = self._service.runs.find(run_name(header))
        except Refusal as refusal:
            if refusal.code == "not_found":
                return  # it ended while its input was on the way
            raise
        run.streams.feed(frame.payload, whole(header, "offset") if "offset" in header else None, last=eof)

    def _refuse(self, frame: Frame, refusal: Refusal) -> None:
        about = "id" if frame.kind in _REQUESTS else "run"
        value = frame.header.get(about)
        known = {about: value} if isinstance(value, int | str) and len(str(value)) <= 64 else {}  # noqa: PLR2004 - as RUN_ID
        self.send({"t": "error", **known, "code": refusal.code, "message": refusal.message})

    def _answer(self, number: int, answer: Reply | Refusal) -> None:
        if isinstance(answer, Refusal):
            self.send({"t": "error", "id": number, "code": answer.code, "message": answer.message})
        else:
            self.send({"t": "reply", "id": number, **answer[0]}, answer[1])

    def _hold(self, held: bool) -> None:  # noqa: FBT001 - the one thing it is about
        if self._source is not None and not self._source.is_closing():
            self._source.pause_reading() if held else self._source.resume_reading()

    def _flow(self, *, can_send: bool) -> None:
        self.can_send = can_send
        self._files.sendable(can_send)
        self._service.runs.flow(self)
