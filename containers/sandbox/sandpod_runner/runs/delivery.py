"""Who gets what a run writes: the stream that owns the run, as fast as it takes it, and any other from the log.

A stream that comes later, in place of a lost one, gets all from the offsets that it names. The run's end goes to
exactly one owner, after all else; without an owner it waits here.

Ended runs are remembered: detached ones and those with a key for long, others only for a stream that is opened again.
Number, age and bytes are bounded, and no kind of run pushes another out; terminals are one of their own.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from sandpod_runner.output.output_log import STREAMS, OutputLog
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.fields import require
from sandpod_runner.protocol.messages import OUT_PIECE
from sandpod_runner.runs.request import RunRequest, fingerprint

MAX_WAITING: Final = 64  # displays and other frames that wait for an owner; what is more is dropped and counted
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024  # the same, in bytes
UNOWNED: Final = 128 * 1024
"""Bytes that a program may write while nobody owns its run: half of what is kept, since the other half, which was
sent, may not have arrived."""
WINDOW: Final = 1280 * 1024
"""Bytes, as the log counts them, that may be on their way to an owner that reports what has come: less than the log
holds, by more than what is read before the program waits."""
_PIECES: Final = 256

MOST: Final = 64  # ended runs of each kind
MAX_BYTES: Final = 32 * 1024 * 1024
"""Bytes of all ended runs' output, in memory and in files. The oldest output is dropped first, its run is not."""
SHORT: Final = 600.0  # seconds that a run is remembered
LONG: Final = 24 * 3600.0  # seconds that one is which was detached or has a key
NAMES: Final = 2048
"""Names of runs that are known, so that none is used twice: far more than can be under way on a lost stream."""


class Owner(Protocol):
    """The stream that a run was started on. What is sent after its end is dropped."""

    can_send: bool  # now

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame, without waiting."""


class Delivery:
    """What is kept of a run, live or ended, and what it has written, on its way.

    A detached run's program never waits for the owner. Where the owner reports what has come (`acks`), the log keeps
    what has not.
    """

    def __init__(self, request: RunRequest, log: OutputLog, owner: Owner | None) -> None:
        self.request = replace(request, code=b"", args=[], env={})
        self.digest = fingerprint(request) if request.key is not None else b""  # what its key stands for
        self.started = time.time()
        self.ended = 0.0  # when it ended, on the clock of the history
        self.kept = 0  # bytes that the history counts for it
        self.log = log
        self.end: dict[str, Any] | None = None  # the fields of the run's `end`, once it has ended
        self.dropped = 0  # frames other than output that were dropped
        self.watchers: set[Callable[[], None]] = set()  # called whenever there is more output, and at the end
        self.owner = owner  # the stream that gets it; None when it has gone
        self._acked = 0 if request.acks else None  # cursor up to which the owner has all; None where it does not say
        self._cursor = 0  # up to which output was sent to it
        self._has = (0, 0)  # offsets of both streams before which it has all
        self._posted = 0  # of the other frames that wait, how many were sent to it
        self._waiting: deque[tuple[dict[str, Any], bytes]] = deque()  # a detached run keeps it for every owner
        self._waiting_bytes = 0

    @property
    def held(self) -> bool:
        """Whether the program has to wait: for a slow owner, or for one to come in a lost one's place."""
        if self.request.detached:
            return False
        if self._acked is not None and self.log.cost_from(self._acked) >= WINDOW:
            return True
        behind = self.log.end - self._cursor
        if self.owner is None:
            return behind + self._waiting_bytes >= UNOWNED
        return behind > 0 or not self.owner.can_send

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self.log.size + self._waiting_bytes

    def describe(self) -> dict[str, Any]:
        """Return the run's row of a `list`."""
        names = ("run", "language", "detached", "context")
        state, outcome = ("live", None) if self.end is None else ("ended", self.end["outcome"])
        fields = {name: getattr(self.request, name) for name in names}
        return {**fields, "started": self.started, "state": state, "outcome": outcome}

    def put(self, stream: int, data: bytes) -> None:
        """Take output of the program, which may have to wait from now on."""
        owner, begin, offset = self.owner, self.log.end, self.log.counts[stream]
        self.log.append(stream, data)
        # To an owner that the program waits for it goes at once: what is read while it is slow is not much.
        if owner is not None and self._cursor == begin and (not self.request.detached or owner.can_send):
            self._cursor = self.log.end
            self._send(owner, stream, offset, data)
        self._notify()

    def post(self, header: dict[str, Any], payload: bytes) -> None:
        """Take another frame about the run. It waits for an owner, up to a limit; a detached run keeps it for more."""
        header = {**header, "run": self.request.run}
        if self.owner is not None and not self.request.detached:
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
        acked = self._cursor_at(stdout, stderr)
        self.owner, self._acked = owner, acked if acks else None
        self._cursor, self._has, self._posted = self.log.seek(stdout, stderr), (stdout, stderr), 0
        self.pump()

    def acknowledge(self, stdout: int, stderr: int) -> None:
        """Record that all has come up to these offsets. Raises Refusal: so much was never written."""
        cursor = self._cursor_at(stdout, stderr)
        if self._acked is not None:
            self._acked = max(self._acked, cursor)

    def pump(self) -> None:
        """Send what the owner has not got yet, as long as it takes it."""
        owner = self.owner
        if owner is None:
            return
        while self._cursor < self.log.end and owner.can_send:
            reading = self.log.read(self._cursor, OUT_PIECE, _PIECES)
            self._cursor = reading.cursor
            for stream, offset, data in reading.pieces:
                skip = max(0, self._has[stream] - offset)
                if skip < len(data):
                    self._send(owner, stream, offset + skip, data[skip:])
        while self._posted < len(self._waiting) and owner.can_send:
            owner.send(*self._waiting[self._posted])
            if self.request.detached:
                self._posted += 1
            else:
                self._waiting_bytes -= len(self._waiting.popleft()[1])
        if self.end is not None and self._cursor == self.log.end and self._posted == len(self._waiting):
            self.owner = None
            owner.send({"t": "end", **self.end})

    def clear(self) -> None:
        """Forget all but how the run ended."""
        self.log.clear()
        self._waiting.clear()
        self._waiting_bytes = self._posted = 0

    def _cursor_at(self, stdout: int, stderr: int) -> int:
        counts = self.log.counts
        require(stdout <= counts[0] and stderr <= counts[1], "The run has not written so much.")
        return stdout + stderr

    def _send(self, owner: Owner, stream: int, offset: int, data: bytes) -> None:
        owner.send({"t": "out", "run": self.request.run, "stream": STREAMS[stream], "offset": offset}, data)

    def _notify(self) -> None:
        for watcher in tuple(self.watchers):
            watcher()


class History:
    """Ended runs, and the keys of all."""

    def __init__(self) -> None:
        self._short: dict[str, Delivery] = {}
        self._long: dict[str, Delivery] = {}
        self._terminals: dict[str, Delivery] = {}  # of which there is no output
        self._keys: dict[str, Delivery] = {}
        self._names: dict[str, None] = {}
        self._bytes = 0

    @property
    def ended(self) -> list[Delivery]:
        """The ended runs that are remembered."""
        return [*self._long.values(), *self._terminals.values(), *self._short.values()]

    def find(self, name: str) -> Delivery | None:
        """Return an ended run."""
        return self._short.get(name) or self._long.get(name) or self._terminals.get(name)

    def known(self, request: RunRequest) -> str | None:
        """Return the run that was started with this request's key or name. Raises Refusal: it had other code."""
        run = self._keys.get(request.key) if request.key is not None else None
        if run is None:
            return request.run if request.run in self._names else None
        if run.digest != fingerprint(request):
            raise Refusal("invalid_argument", "That idempotency key was used for other code: use another key.")
        return run.request.run

    def begin(self, run: Delivery) -> None:
        """Record a run that was started."""
        self._names[run.request.run] = None
        if len(self._names) > NAMES:
            del self._names[next(iter(self._names))]
        if run.request.key is not None:
            self._keys[run.request.key] = run

    def end(self, run: Delivery, now: float) -> None:
        """Record that a run has ended."""
        run.ended, run.kept = now, run.size
        kind = self._terminals if run.request.terminal else self._long if run.request.long else self._short
        kind[run.request.run] = run
        self._bytes += run.kept
        if len(kind) > MOST:
            self._forget(kind.pop(next(iter(kind))))
        while self._bytes > MAX_BYTES and self.drop_output():
            continue

    def expire(self, now: float) -> float | None:
        """Forget what is too old, and return in how many seconds something else will be."""
        waits = []
        for kind, age in ((self._short, SHORT), (self._long, LONG), (self._terminals, LONG)):
            while kind and (oldest := next(iter(kind.values()))).ended + age <= now:
                self._forget(kind.pop(oldest.request.run))
            waits += [run.ended + age - now for run in list(kind.values())[:1]]
        return min(waits, default=None)

    def drop_output(self) -> bool:
        """Drop the oldest output, and return whether there was any."""
        for run in (*self._short.values(), *self._long.values()):
            if run.kept:
                self._empty(run)
                return True
        return False

    def _forget(self, run: Delivery) -> None:
        self._empty(run)
        if run.request.key is not None:
            del self._keys[run.request.key]

    def _empty(self, run: Delivery) -> None:
        run.clear()
        self._bytes -= run.kept
        run.kept = 0
