"""Who gets what a run writes: the stream that owns the run, as fast as it takes it, and any other from the log.

A stream that comes later, in place of a lost one, gets all from the offsets that it names. The run's end goes to
exactly one owner, after all else; without an owner it waits here.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sandpod_runner.output.output_log import STREAMS, OutputLog
from sandpod_runner.protocol.fields import require
from sandpod_runner.protocol.messages import OUT_PIECE

MAX_WAITING: Final = 64  # displays and other frames that wait for an owner; what is more is dropped and counted
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024  # the same, in bytes
UNOWNED: Final = 128 * 1024
"""Bytes that a program may write while nobody owns its run: half of what is kept, since the other half, which was
sent, may not have arrived."""
WINDOW: Final = 1280 * 1024
"""Bytes, as the log counts them, that may be on their way to an owner that reports what has come: less than the log
holds, by more than what is read before the program waits."""
_PIECES: Final = 256


class Owner(Protocol):
    """The stream that a run was started on. What is sent after its end is dropped."""

    can_send: bool  # now

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame, without waiting."""


@dataclass(slots=True)
class _Subscriber:
    """The stream that gets what a run writes, and how far it is."""

    owner: Owner | None  # the stream; None when it has gone
    acked: int | None  # the cursor up to which it says that all has come; None where it says nothing
    cursor: int = 0
    has: tuple[int, int] = (0, 0)  # offsets of both streams before which it has all
    posted: int = 0  # of the other frames that wait, how many were sent


class Delivery:
    """What one run has written, on its way.

    A detached run's program never waits for the owner. With `acks` the owner reports what has come, so that the log can
    keep what has not.
    """

    def __init__(self, run: str, log: OutputLog, owner: Owner, *, detached: bool, acks: bool = False) -> None:
        self.log = log
        self.end: dict[str, Any] | None = None  # the fields of the run's `end`, once it has ended
        self.dropped = 0  # frames other than output that were dropped
        self.watchers: set[Callable[[], None]] = set()  # called whenever there is more output, and at the end
        self._run = run
        self._detached = detached
        self._to = _Subscriber(owner, 0 if acks else None)
        self._waiting: deque[tuple[dict[str, Any], bytes]] = deque()  # a detached run keeps it for every owner
        self._waiting_bytes = 0

    @property
    def owner(self) -> Owner | None:
        """The stream that gets it."""
        return self._to.owner

    @property
    def held(self) -> bool:
        """Whether the program has to wait: for a slow owner, or for one to come in a lost one's place."""
        if self._detached:
            return False
        if self._to.acked is not None and self.log.cost_from(self._to.acked) >= WINDOW:
            return True
        behind = self.log.end - self._to.cursor
        if self.owner is None:
            return behind + self._waiting_bytes >= UNOWNED
        return behind > 0 or not self.owner.can_send

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self.log.size + self._waiting_bytes

    def put(self, stream: str, offset: int, data: bytes) -> None:
        """Take output of the program, which may have to wait from now on."""
        owner, begin = self.owner, self.log.end
        self.log.append(STREAMS.index(stream), data)
        # To an owner that the program waits for it goes at once: what is read while it is slow is not much.
        if owner is not None and self._to.cursor == begin and (not self._detached or owner.can_send):
            self._to.cursor = self.log.end
            owner.send({"t": "out", "run": self._run, "stream": stream, "offset": offset}, data)
        self._notify()

    def post(self, header: dict[str, Any], payload: bytes) -> None:
        """Take another frame about the run. It waits for an owner, up to a limit; a detached run keeps it for more."""
        header = {**header, "run": self._run}
        if self.owner is not None and not self._detached:
            self.owner.send(header, payload)
        elif len(self._waiting) >= MAX_WAITING or self._waiting_bytes + len(payload) > MAX_WAITING_BYTES:
            self.dropped += 1
        else:
            self._waiting.append((header, payload))
            self._waiting_bytes += len(payload)
            self.pump()

    def finish(self, end: dict[str, Any]) -> None:
        """Take the fields of the run's `end`: nothing comes after it."""
        self.end = end
        self.pump()
        self._notify()

    def follow(self, owner: Owner, stdout: int, stderr: int, *, acks: bool = False) -> None:
        """Send to this stream from these offsets on. Raises Refusal: so much was never written."""
        acked = self._cursor(stdout, stderr)
        self._to = _Subscriber(owner, acked if acks else None, self.log.seek(stdout, stderr), (stdout, stderr))
        self.pump()

    def acknowledge(self, stdout: int, stderr: int) -> None:
        """Note that all has come up to these offsets. Raises Refusal: so much was never written."""
        cursor = self._cursor(stdout, stderr)
        if self._to.acked is not None:
            self._to.acked = max(self._to.acked, cursor)

    def leave(self) -> None:
        """Note that the owner has gone."""
        self._to.owner = None

    def pump(self) -> None:
        """Send what the owner has not got yet, as long as it takes it."""
        owner, to = self.owner, self._to
        if owner is None:
            return
        while to.cursor < self.log.end and owner.can_send:
            self._send_next(owner)
        while to.posted < len(self._waiting) and owner.can_send:
            owner.send(*self._waiting[to.posted])
            if self._detached:
                to.posted += 1
            else:
                self._waiting_bytes -= len(self._waiting.popleft()[1])
        if self.end is not None and to.cursor == self.log.end and to.posted == len(self._waiting):
            to.owner = None
            owner.send({"t": "end", **self.end})

    def clear(self) -> None:
        """Forget all but how the run ended."""
        self.log.clear()
        self._waiting.clear()
        self._waiting_bytes = self._to.posted = 0

    def _cursor(self, stdout: int, stderr: int) -> int:
        counts = self.log.counts
        require(stdout <= counts[0] and stderr <= counts[1], "The run has not written so much.")
        return stdout + stderr

    def _send_next(self, owner: Owner) -> None:
        reading = self.log.read(self._to.cursor, OUT_PIECE, _PIECES)
        self._to.cursor = reading.cursor
        for stream, offset, data in reading.pieces:
            skip = max(0, self._to.has[stream] - offset)
            if skip < len(data):
                header = {"t": "out", "run": self._run, "stream": STREAMS[stream], "offset": offset + skip}
                owner.send(header, data[skip:])

    def _notify(self) -> None:
        for watcher in tuple(self.watchers):
            watcher()
