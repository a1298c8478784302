"""Refused requests, of which anybody can send as many as they like: counted, so that they can't fill a disk.

The first one of a kind is recorded at once, and the others of the same minute as one record with their number.
"""

from collections.abc import Callable
from typing import Final

from sandpod_gateway.audit.act import Record

WINDOW: Final = 60.0  # seconds
MAX_KINDS: Final = 64  # of one window that are told apart; the others are one number

Fact = tuple[str, str | int]


class Refusals:
    """The refusals of the last minute; `write` records."""

    def __init__(self, write: Callable[[Record], None]) -> None:
        self._write = write
        self._more: dict[tuple[Fact, ...], int] = {}  # since the first one of each kind
        self._others = 0

    def add(self, **facts: str | int) -> None:
        """Count a refusal."""
        kind = tuple(sorted(facts.items()))
        if kind in self._more:
            self._more[kind] += 1
        elif len(self._more) < MAX_KINDS:
            self._more[kind] = 0
            self._write({**facts, "event": "refused", "count": 1})
        else:
            self._others += 1

    def flush(self) -> None:
        """Record what was counted, and begin anew."""
        for kind, count in self._more.items():
            if count:
                self._write({**dict(kind), "event": "refused", "count": count})
        if self._others:
            self._write({"event": "refused", "count": self._others})
        self._more, self._others = {}, 0
