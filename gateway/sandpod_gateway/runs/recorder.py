"""What came of one run: a bounded part of its output, and what it showed. No I/O.

The connection's reader calls the methods of a sink, which never wait. What is kept does not grow with what comes.
"""

from typing import Final

from sandpod_gateway.runs.ansi import Stripper
from sandpod_gateway.runs.capture import Capture, Captured
from sandpod_gateway.runs.progress import OutputStream
from sandpod_gateway.runs.showing import Showing

STREAMS: Final = ("stdout", "stderr")


class _Stream:
    """One stream of output."""

    def __init__(self, cap: int, *, strip_ansi: bool) -> None:
        self.capture = Capture(cap)
        self.received = 0  # the offset up to which it has come, according to the sandbox
        self.taken = 0  # bytes that came: offsets are not added up, since a sandbox may send any
        self.gap = False  # whether some of it was lost
        self._stripper = Stripper() if strip_ansi else None

    def take(self, offset: int, data: bytes) -> bytes:
        """Keep what is new of a piece, and return what can be shown of the stream by now."""
        gap, end = offset - self.received, offset + len(data)
        data = data[max(-gap, 0) :]
        if not data:
            return b""
        self.received = end
        self.taken += len(data)
        if gap > 0:
            self.gap = True
            data = f"\n[... {gap} bytes lost ...]\n".encode() + data
        if self._stripper is not None:
            data = self._stripper.feed(data)
        self.capture.feed(data)
        return data

    def finish(self) -> bytes:
        """Keep what was held back as the beginning of a control sequence that never came, and return it."""
        rest = self._stripper.finish() if self._stripper is not None else b""
        self.capture.feed(rest)
        return rest


class Recorder:
    """Keeps what comes of a run: of each stream `cap` bytes, half from its beginning and half from its end.

    Output goes to `progress` as it comes.
    """

    def __init__(self, cap: int, *, strip_ansi: bool = False, progress: OutputStream | None = None) -> None:
        self.showing = Showing()
        self.display, self.result = self.showing.display, self.showing.result
        self._progress = progress
        self._streams = {name: _Stream(cap, strip_ansi=strip_ansi) for name in STREAMS}

    @property
    def received(self) -> dict[str, int]:
        """The offset up to which each stream has come, according to the sandbox."""
        return {name: stream.received for name, stream in self._streams.items()}

    @property
    def taken(self) -> dict[str, int]:
        """Bytes of each stream that came."""
        return {name: stream.taken for name, stream in self._streams.items()}

    @property
    def progress_dropped(self) -> int:
        """Bytes of output that were not sent as progress."""
        return self._progress.dropped if self._progress is not None else 0

    def output(self, stream: str, offset: int, data: bytes) -> None:
        """Take a piece of output. After a lost connection it may overlap what came before, or leave a gap."""
        self._pass_on(stream, self._streams[stream].take(offset, data))

    def append(self, stream: str, data: bytes) -> None:
        """Take the next piece of a stream."""
        self.output(stream, self._streams[stream].received, data)

    def finish(self) -> None:
        """Pass on what was held back: no more output comes."""
        for name, stream in self._streams.items():
            self._pass_on(name, stream.finish())

    def is_complete(self, stream: str, written: int) -> bool:
        """Return whether all that the program wrote to a stream came."""
        state = self._streams[stream]
        return not state.gap and written <= state.received

    def read(self, stream: str) -> Captured:
        """Return all of a stream that is kept."""
        return self._streams[stream].capture.read()

    def shared(self, most: int) -> tuple[Captured, Captured]:
        """Return both streams in `most` characters together; where they do not fit, each has at least half."""
        out, err = self.read("stdout"), self.read("stderr")
        if len(out.text) + len(err.text) <= most:
            return out, err
        for_err = min(len(err.text), max(most // 2, most - len(out.text)))
        return self._streams["stdout"].capture.read(most - for_err), self._streams["stderr"].capture.read(for_err)

    def _pass_on(self, stream: str, data: bytes) -> None:
        if self._progress is not None and data:
            self._progress.feed(stream, data)
