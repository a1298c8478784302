"""The records in which a program sends the runner what it shows. The runner trusts none of them."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

from sandpod_runner.protocol.messages import MAX_DISPLAY, MAX_RESULT

KEPT_FOLDER: Final = "pictures"
"""Where pictures are kept whole that are not shown as they are, in a run's working directory."""
MAX_KEPT: Final = 64  # pictures of one run that are

RECORD: Final = Struct(">BBI")
"""What stands before the bytes of a record: its kind, its type as a place in MIME_TYPES, how many bytes follow."""


class RecordKind(IntEnum):
    """What a record is."""

    DISPLAY = 0
    RESULT = 1
    DROPPED = 2
    DONE = 3
    FORM = 4  # another form of the display before it
    KEPT = 5  # A picture was kept as a file


DONE: Final = Struct(">Bdq")
"""The content of the record that a program is over: exit code, seconds of processor time, peak memory in bytes."""
LIMITS: Final = {
    RecordKind.DISPLAY: MAX_DISPLAY,
    RecordKind.RESULT: MAX_RESULT,
    RecordKind.DROPPED: 0,
    RecordKind.DONE: DONE.size,
    RecordKind.FORM: MAX_DISPLAY,
    RecordKind.KEPT: 0,
}
"""Largest record of each kind, bytes."""
