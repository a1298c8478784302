"""The records in which a program sends the runner what it shows, on a descriptor of its own.

The runner trusts nothing of what it reads there.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

from sandpod_runner.protocol.messages import MAX_DISPLAY, MAX_RESULT

RECORD: Final = Struct(">BBI")
"""What stands before the bytes of a record: its kind, its type as a place in MIME_TYPES, how many bytes follow."""


class RecordKind(IntEnum):
    """What a record is."""

    DISPLAY = 0
    RESULT = 1
    DROPPED = 2
    DONE = 3
    FORM = 4
    """Another form of the display before it."""


DONE: Final = Struct(">Bdq")
"""The content of the record that a program is over: exit code, seconds of processor time, peak memory in bytes."""
LIMITS: Final = {
    RecordKind.DISPLAY: MAX_DISPLAY,
    RecordKind.RESULT: MAX_RESULT,
    RecordKind.DROPPED: 0,
    RecordKind.DONE: DONE.size,
    RecordKind.FORM: MAX_DISPLAY,
}
"""Largest record of each kind, bytes."""
