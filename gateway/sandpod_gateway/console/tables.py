"""Tables of sandboxes as pages know them, so that a page that asks again gets the rows that are others since.

A table's tag follows from its rows alone: each gateway gives the same rows the same tag, whichever was asked before.
"""

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from cachetools import LRUCache

from sandpod_gateway.backends.base import SandboxRecord

MAX_TABLES: Final = 256
MAX_KNOWN: Final = 64  # tags of a table, the newest: a page that rested for longer gets all rows
_BYTES: Final = 12  # of a tag
_ALL: Final = 1 << 8 * _BYTES
EMPTY: Final = "0" * 2 * _BYTES


class Changes(NamedTuple):
    """What of a table is another than a page knows, in the table's order."""

    new: list[SandboxRecord]
    changed: list[SandboxRecord]
    gone: list[str]

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.gone)


class _Row(NamedTuple):
    record: SandboxRecord
    digest: int
    added: int  # the table's version that was the first with it
    changed: int  # the version that was the first with it as it is


class Table:
    """The rows of one table, and which of them each of its last versions did not have as they are."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._gone: dict[str, int] = {}  # the version that was the first without a row
        self._version = self._sum = 0
        self._known = {self.tag: 0}  # versions by their tags, oldest first

    @property
    def tag(self) -> str:
        """What is another one once a row is."""
        return f"{self._sum:0{2 * _BYTES}x}"

    def use(self, records: Sequence[SandboxRecord]) -> None:
        """Take in what there is."""
        old, self._rows, version = self._rows, {}, self._version + 1
        for record in records:
            row = old.pop(record.name, None)
            if row is None or (row.record is not record and row.record != record):
                row = _Row(record, _digest(record), row.added if row else version, version)
            self._rows[record.name] = row
        if not old and all(row.changed < version for row in self._rows.values()):
            return
        self._version = version
        self._gone.update(dict.fromkeys(old, version))
        self._sum = sum(row.digest for row in self._rows.values()) % _ALL
        self._known.pop(self.tag, None)
        self._known[self.tag] = version
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        oldest = next(iter(self._known.values()))
        self._gone = {name: since for name, since in self._gone.items() if since > oldest}

    def since(self, tag: str) -> Changes | None:
        """Return what is another than at a tag; None where only all of it will do."""
        known, now = self._known.get(tag), self.tag
        if known is None or (tag != now and EMPTY in {tag, now}):  # a table without rows says so in their place
            return None
        changed = [row for row in self._rows.values() if row.changed > known] if tag != now else []
        return Changes(
            new=[row.record for row in changed if row.added > known],
            changed=[row.record for row in changed if row.added <= known],
            gone=[name for name, since in self._gone.items() if since > known] if tag != now else [],
        )


class Tables:
    """The tables that pages have shown, each for those who see the same rows."""

    def __init__(self) -> None:
        self._tables: LRUCache[tuple[object, ...], Table] = LRUCache(MAX_TABLES)

    def of(self, *readers: object, records: Sequence[SandboxRecord]) -> Table:
        """Return a table as it is now."""
        table = self._tables.get(readers)
        if table is None:
            table = self._tables[readers] = Table()
        table.use(records)
        return table


def _digest(record: SandboxRecord) -> int:
    return int.from_bytes(hashlib.blake2b(repr(record).encode(), digest_size=_BYTES).digest())
