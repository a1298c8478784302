"""The streams of one run: what its program writes and shows, on the way to the run's delivery, and its input.

The program may write anything where it shows things: from the first thing that is no record on, it is ignored. At
most one unfinished record is kept.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Final

from sandpod_runner.ipc.display_records import DONE, LIMITS, MAX_KEPT, RECORD, RecordKind
from sandpod_runner.ipc.jobs import Exit
from sandpod_runner.output.output_log import STREAMS
from sandpod_runner.output.stdio_pipes import SHOWN, PipeReader, Pipes
from sandpod_runner.protocol.messages import MAX_DISPLAYS, MIME_TYPES
from sandpod_runner.runs.delivery import Delivery
from sandpod_runner.runs.request import RunRequest, Stop

LAST_WORDS: Final = 4096  # bytes of standard error that are looked at


class Streams:
    """The streams of one run: nothing is read or written before they are connected."""

    def __init__(self, request: RunRequest, delivery: Delivery, stop: Callable[[Stop], None]) -> None:
        self._request = request
        self._delivery = delivery
        self._stop = stop
        self._pipes = Pipes()
        self._done: Callable[[Exit], None] | None = None
        self._record = bytearray()  # one that is unfinished
        self._index = -1
        self.forms = 0  # of displays, that were passed on
        self.results = 0  # forms of a last value that were
        self.dropped = 0  # how many were too large or too many
        self.kept = 0  # pictures that were kept as files
        self.last_words = b""  # the end of standard error: what a runtime writes when it gives up

    def connect(self, pipes: Pipes, done: Callable[[Exit], None] | None = None) -> None:
        """Begin; the pipes are closed here. `done` is called when the program reports its end, if that is trusted."""
        self._pipes, self._done = pipes, done
        for name, reader in pipes.outputs.items():
            reader.take = self._take_records if name == SHOWN else partial(self._take, STREAMS.index(name))
        self.flow()
        if pipes.stdin is not None and not self._request.stdin:
            pipes.stdin.end()

    def flow(self) -> None:
        """Let output come, or leave it in the pipes, as its owner can take it."""
        self._delivery.pump()
        held = self._delivery.held
        for reader in self._pipes.outputs.values():
            reader.pause() if held else reader.resume()

    def feed(self, data: bytes, offset: int | None, *, last: bool) -> None:
        """Take input for the program, after `offset` bytes of which some may have come already; None: it comes next."""
        stdin = self._pipes.stdin
        if stdin is None or not self._request.stdin:
            return
        if offset is not None:
            if offset > stdin.taken:
                self._stop(Stop("error", "A part of the program's input was lost on the way: it was ended."))
                return
            data = data[stdin.taken - offset :]
        if not stdin.feed(data):
            self._stop(Stop("error", "More input came than the program read: it was ended."))
        if last:
            stdin.end()

    def release(self) -> list[PipeReader]:
        """Read what is left, and return the pipes that somebody may still write to: they are the caller's."""
        for reader in self._pipes.outputs.values():
            reader.drain()
        outputs, self._pipes.outputs = self._pipes.outputs, {}
        if SHOWN in outputs:
            outputs.pop(SHOWN).close()
        return [reader for reader in outputs.values() if reader.open]

    def close(self) -> None:
        """Read and write nothing more."""
        self._pipes.close()

    def _take_records(self, data: bytes) -> bool:
        """Pass on what is whole and within the limits, and return whether all of it was records."""
        self._record += data
        while len(self._record) >= RECORD.size:
            kind, mime, size = RECORD.unpack_from(self._record)
            if kind not in LIMITS or mime >= len(MIME_TYPES) or size > LIMITS[kind]:
                return False
            end = RECORD.size + size
            if len(self._record) < end:
                break
            content = bytes(self._record[RECORD.size : end])
            del self._record[:end]
            if not self._pass_on(kind, MIME_TYPES[mime], content):
                return False
        return True

    def _pass_on(self, kind: int, mime: str, data: bytes) -> bool:
        match kind:
            case RecordKind.DISPLAY | RecordKind.FORM if self.forms < MAX_DISPLAYS:
                self._index += kind == RecordKind.DISPLAY
                self._delivery.post({"t": "display", "mime": mime, "index": max(0, self._index)}, data)
                self.forms += 1
            case RecordKind.RESULT if self._request.context is not None and self.results < len(MIME_TYPES):
                self._delivery.post({"t": "result", "mime": mime}, data)
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
        self._hold()
        return True

    def _take(self, stream: int, data: bytes) -> bool:
        limit = self._request.output_limit
        room = limit - self._delivery.log.end
        if room > 0:
            self._delivery.put(stream, data[:room])
            self._hold()
        if STREAMS[stream] == "stderr":
            self.last_words = (self.last_words + data)[-LAST_WORDS:]
        if len(data) <= room:
            return True
        for name in STREAMS:
            self._pipes.outputs[name].close()
        self._stop(Stop("output_limit", f"It wrote more than {limit} bytes of output.", gentle=False))
        return False

    def _hold(self) -> None:
        if self._delivery.held:
            self.flow()
