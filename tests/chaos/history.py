"""What was done and what was told, in order: one JSON object a line, kept in a file as it comes.

Each record has its `kind` and the seconds since the beginning. `invariants` says what must be true of them all.
"""

import json
import time
from pathlib import Path
from typing import Any, Final

Record = dict[str, Any]

LONGEST: Final = 2000  # characters of a text that is recorded


class History:
    """The records of one run of the program.

    Args:
        path: Where they are kept.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.records: list[Record] = []
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._began = time.monotonic()

    def add(self, kind: str, **what: Any) -> None:
        """Add a record."""
        record = {"kind": kind, "at": round(time.monotonic() - self._began, 2), **what}
        self.records.append(record)
        self._file.write(json.dumps(record, default=lambda value: str(value)[:LONGEST]) + "\n")

    def since(self, kind: str) -> list[Record]:
        """Return the records from the last one of a kind on."""
        last = max((place for place, each in enumerate(self.records) if each["kind"] == kind), default=0)
        return self.records[last:]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
