"""Reads what a program shows and passes on what is whole and within the limits.

The program may write anything: at the first thing that is no record it is not listened to any more. At most one
unfinished record is kept.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from sandpod_runner.ipc.display_records import DONE, LIMITS, MAX_KEPT, RECORD, RecordKind
from sandpod_runner.ipc.jobs import Exit
from sandpod_runner.output.stdio_pipes import PipeReader
from sandpod_runner.protocol.messages import MAX_DISPLAYS, MIME_TYPES

_MAX_RESULTS: Final = len(MIME_TYPES)

Post = Callable[[dict[str, Any], bytes], None]


class Shown:
    """Takes what comes from a pipe.

    `post` gets the fields of each form's frame, but for the run, and its bytes. `done` gets the program's report that
    it is over; None where that is not trusted.
    """

    def __init__(self, pipe: PipeReader, post: Post, done: Callable[[Exit], None] | None, *, results: bool) -> None:
        pipe.take = self._take
        self._post = post
        self._done = done
        self._max_results = _MAX_RESULTS if results else 0
        self._buffer = bytearray()
        self._index = -1
        self.forms = 0  # of displays, that were passed on
        self.results = 0  # forms of a last value that were
        self.dropped = 0  # how many were too large or too many
        self.kept = 0  # pictures that were kept as files

    def _take(self, data: bytes) -> bool:
        """Pass whole records on, and return whether all of it was records."""
        self._buffer += data
        while len(self._buffer) >= RECORD.size:
            kind, mime, size = RECORD.unpack_from(self._buffer)
            if kind not in LIMITS or mime >= len(MIME_TYPES) or size > LIMITS[kind]:
                return False
            end = RECORD.size + size
            if len(self._buffer) < end:
                break
            content = bytes(self._buffer[RECORD.size : end])
            del self._buffer[:end]
            if not self._pass_on(kind, MIME_TYPES[mime], content):
                return False
        return True

    def _pass_on(self, kind: int, mime: str, data: bytes) -> bool:
        match kind:
            case RecordKind.DISPLAY | RecordKind.FORM if self.forms < MAX_DISPLAYS:
                self._index += kind == RecordKind.DISPLAY
                self._post({"t": "display", "mime": mime, "index": max(0, self._index)}, data)
                self.forms += 1
            case RecordKind.RESULT if self.results < self._max_results:
                self._post({"t": "result", "mime": mime}, data)
                self.results += 1
            case RecordKind.DROPPED:
                self.dropped += 1
            case RecordKind.KEPT if self.kept < MAX_KEPT:
                self.kept += 1
            case RecordKind.DONE if self._done is not None and len(data) == DONE.size:
                code, cpu, max_rss = DONE.unpack(data)
                if math.isfinite(cpu):
                    self._done(Exit(code << 8, max(0.0, cpu), max(0, max_rss)))
                return False  # it has nothing more to say
            case _:
                return False
        return True
