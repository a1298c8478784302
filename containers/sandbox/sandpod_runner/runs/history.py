"""What is remembered of runs: how they ended, their output, and which run an idempotency key belongs to.

Detached runs and those with a key are remembered long, others only for a stream that is opened again. Number, age and
bytes are bounded, and neither kind of run pushes the other out.
"""

import time
from typing import Any, Final

from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.runs.delivery import Delivery
from sandpod_runner.runs.request import RunRequest, fingerprint

MOST: Final = 64  # ended runs of each kind
MAX_BYTES: Final = 32 * 1024 * 1024
"""Bytes of all ended runs' output, in memory and in files. The oldest output is dropped first, its run is not."""
SHORT: Final = 600.0  # seconds that a run is remembered
LONG: Final = 24 * 3600.0  # seconds that one is which was detached or has a key
NAMES: Final = 2048
"""Names of runs that are known, so that none is used twice: far more than can be under way on a lost stream."""


class Record:
    """A run, live or ended. It does not hold the code."""

    def __init__(self, request: RunRequest, delivery: Delivery) -> None:
        self.run = request.run
        self._fields = {name: getattr(request, name) for name in ("run", "language", "detached", "context")}
        self._fields["started"] = time.time()
        self.delivery = delivery
        self.long = request.long
        self.key = request.key
        self.digest = fingerprint(request) if request.key is not None else b""  # what the key stands for
        self.ended = 0.0  # when it ended, on the clock whose time is given
        self.size = 0  # bytes that were kept of it then

    def describe(self) -> dict[str, Any]:
        """Return its row of a `list`."""
        end = self.delivery.end
        state = {"state": "live", "outcome": None} if end is None else {"state": "ended", "outcome": end["outcome"]}
        return {**self._fields, **state}


class MemoryOfRuns:
    """Ended runs, and the keys of all."""

    def __init__(self) -> None:
        self._short: dict[str, Record] = {}
        self._long: dict[str, Record] = {}
        self._keys: dict[str, Record] = {}
        self._names: dict[str, None] = {}
        self._bytes = 0

    @property
    def ended(self) -> list[Record]:
        """The ended runs that are remembered."""
        return [*self._long.values(), *self._short.values()]

    def find(self, name: str) -> Record | None:
        """Return an ended run."""
        return self._short.get(name) or self._long.get(name)

    def known(self, request: RunRequest) -> str | None:
        """Return the run that was started with this request's key or name. Raises Refusal: it had other code."""
        record = self._keys.get(request.key) if request.key is not None else None
        if record is None:
            return request.run if request.run in self._names else None
        if record.digest != fingerprint(request):
            raise Refusal("invalid_argument", "That idempotency key was used for other code: use another key.")
        return record.run

    def begin(self, record: Record) -> None:
        """Note a run that was started."""
        self._names[record.run] = None
        if len(self._names) > NAMES:
            del self._names[next(iter(self._names))]
        if record.key is not None:
            self._keys[record.key] = record

    def end(self, record: Record, now: float) -> None:
        """Note that a run has ended."""
        record.ended, record.size = now, record.delivery.size
        kind = self._long if record.long else self._short
        kind[record.run] = record
        self._bytes += record.size
        if len(kind) > MOST:
            self._forget(kind.pop(next(iter(kind))))
        while self._bytes > MAX_BYTES and self.drop_output():
            continue

    def expire(self, now: float) -> float | None:
        """Forget what is too old, and return in how many seconds something else will be."""
        waits = []
        for kind, age in ((self._short, SHORT), (self._long, LONG)):
            while kind and (oldest := next(iter(kind.values()))).ended + age <= now:
                self._forget(kind.pop(oldest.run))
            waits += [record.ended + age - now for record in list(kind.values())[:1]]
        return min(waits, default=None)

    def drop_output(self) -> bool:
        """Drop the oldest output, and return whether there was any."""
        for record in (*self._short.values(), *self._long.values()):
            if record.size:
                self._empty(record)
                return True
        return False

    def _forget(self, record: Record) -> None:
        self._empty(record)
        if record.key is not None:
            del self._keys[record.key]

    def _empty(self, record: Record) -> None:
        record.delivery.clear()
        self._bytes -= record.size
        record.size = 0
