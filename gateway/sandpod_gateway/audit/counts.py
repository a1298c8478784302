"""What anybody can cause as often as they like, such as refused requests: counted, so that it can't fill a disk.

The first one of a kind is recorded at once, and the others of the same minute as one record with their number.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from sandpod_gateway.audit.act import Record

WINDOW: Final = 60.0  # seconds
MAX_KINDS: Final = 64  # of one window that are told apart; the others are one number for each event

Fact = tuple[str, str | int]


class Counts:
    """What happened in the last minute; `write` records."""

    def __init__(self, write: Callable[[Record], None]) -> None:
        self._write = write
        self._more: dict[tuple[Fact, ...], int] = {}  # since the first one of each kind
        self._others: Counter[str] = Counter()  # by event

    def add(self, event: str, **facts: str | int) -> None:
        """Count an event."""
        kind = tuple(sorted({**facts, "event": event}.items()))
        if kind in self._more:
            self._more[kind] += 1
        elif len(self._more) < MAX_KINDS:
            self._more[kind] = 0
            self._write({**dict(kind), "count": 1})
        else:
            self._others[event] += 1

    def flush(self) -> None:
        """Record what was counted, and begin anew."""
        for kind, count in self._more.items():
            if count:
                self._write({**dict(kind), "count": count})
        for event, count in self._others.items():
            self._write({"event": event, "count": count})
        self._more, self._others = {}, Counter()
