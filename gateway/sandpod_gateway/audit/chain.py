"""The hash chain. Pure.

A record is an object of JSON. Its hash is the SHA-256 of its canonical form without the member `hash`: members in order
of their names, no spaces, ASCII. `previous` is the hash of the record before it, so that no record can be changed,
removed or moved without all later ones being written anew. Numbers are whole: they read the same everywhere.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

FORMAT: Final = "sandpod.dev/v1"
MARK: Final = "audit"  # tells a record from any other line: it comes first, as no other member's name sorts before it
START: Final = "0" * 64  # what the first record of a chain has as `previous`
MAX_LINE: Final = 512 * 1024  # bytes; 64 KiB of code take at most six times as many


def canonical(record: Mapping[str, Any]) -> str:
    """Return the form of a record that is hashed."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"))


def digest(record: Mapping[str, Any]) -> str:
    """Return the hash of a record, which may or may not have one already."""
    return _hash(canonical({name: value for name, value in record.items() if name != "hash"}))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()


@dataclass(slots=True)
class Chain:
    """The records of one process in one place: where the chain ends now."""

    replica: str
    sink: str
    sequence: int = 0  # of the next record
    last: str = START  # hash of the last one

    def link(self, facts: Mapping[str, Any]) -> tuple[bytes, str]:
        """Return the line that comes next with its end, and its hash. It is not in the chain before `advance`."""
        members = {
            **facts,
            MARK: FORMAT,
            "replica": self.replica,
            "sink": self.sink,
            "sequence": self.sequence,
            "previous": self.last,
        }
        text = canonical(members)
        own = _hash(text)
        return f'{text[:-1]},"hash":"{own}"}}\n'.encode("ascii"), own

    def advance(self, own: str) -> None:
        """Take the line with that hash as written."""
        self.sequence += 1
        self.last = own
