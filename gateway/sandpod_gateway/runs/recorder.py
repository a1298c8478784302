"""What came of one run: a bounded part of its output, and of what it showed. No I/O.

The connection's reader calls the methods of a sink, which never wait. What is kept does not grow with what comes.
"""

from dataclasses import dataclass, field
from typing import Final

from sandpod_gateway.api.run_results import Rich
from sandpod_gateway.content import MAX_PICTURES, PICTURES, Picture, json_size
from sandpod_gateway.runs.capture import Capture, Captured, Stripper
from sandpod_gateway.runs.progress import OutputStream
from sandpod_runner.protocol import messages as protocol

MAX_SHOWN: Final = 160 * 1024  # bytes of all else that a run shows, as they are sent
MAX_VALUE: Final = 96 * 1024  # bytes of all forms of a last value, but for pictures, as they are sent
MAX_TEXT: Final = 32 * 1024  # bytes of a last value as plain text; it is cut there, and other forms are left out whole
_GROWTH: Final = 14  # most bytes that one of a text takes in an answer: a control character grows to 6 and then 7 more
_TEXTS: Final = frozenset(protocol.MIME_TYPES) - PICTURES


class _Stream(Capture):
    """One stream of output."""

    def __init__(self, cap: int, *, strip_ansi: bool) -> None:
        super().__init__(cap)
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
        self.feed(data)
        return data

    def finish(self) -> bytes:
        """Keep what was held back as the beginning of a control sequence that never came, and return it."""
        rest = self._stripper.finish() if self._stripper is not None else b""
        self.feed(rest)
        return rest


@dataclass(slots=True)
class Showing:
    """What a run showed, and the forms of a cell's last value: as much of both as an answer takes."""

    pictures: list[Picture] = field(default_factory=list)
    displays: list[Rich] = field(default_factory=list)
    value: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    _shown: int = 0
    _valued: int = 0

    def display(self, mime: str, index: int, data: bytes) -> None:
        """Take one form of something that the program showed; forms of one thing have the same index."""
        # The runner keeps to its limit; what is in the sandbox may have become the runner.
        text, size = None, 0
        fits = len(self.displays) <= protocol.MAX_DISPLAYS
        if fits and mime in PICTURES:
            fits = sum(len(picture.data) for picture in self.pictures) + len(data) <= MAX_PICTURES
        elif fits:
            text, size = _fitting(mime, data, MAX_SHOWN - self._shown)
            fits = text is not None
        if not fits:
            self.dropped += 1
            return
        if text is None:
            self.pictures.append(Picture(mime, data))
        self._shown += size
        self.displays.append(Rich(index=index, mime_type=mime, size=len(data), text=text))

    def result(self, mime: str, data: bytes) -> None:
        """Take one form of the last value."""
        if mime in PICTURES:
            self.display(mime, 1 + max((rich.index for rich in self.displays), default=-1), data)
            return
        text, size = None, 0
        if mime not in self.value:
            text, size = _fitting(mime, _cut(data) if mime == "text/plain" else data, MAX_VALUE - self._valued)
        if text is None:
            self.dropped += 1
            return
        self._valued += size
        self.value[mime] = text


def sent_size(text: str) -> int:
    """Return the bytes that a text takes in an answer: in its structured form, and in its text."""
    return 2 * json_size(text)


def _fitting(mime: str, data: bytes, room: int) -> tuple[str | None, int]:
    """Return a form as text and the bytes that it takes in an answer; None if it is of no known type or takes more."""
    if mime not in _TEXTS or len(data) > room:
        return None, 0
    text = data.decode("utf-8", "replace")
    size = sent_size(text)
    return (text, size) if size <= room else (None, 0)


def _cut(data: bytes) -> bytes:
    """Return plain text that is short enough, with what is missing said at its end."""
    kept = data[:MAX_TEXT]
    most = MAX_VALUE * 3 // 4  # the rest is for other forms
    while len(kept) * _GROWTH > most and sent_size(kept.decode("utf-8", "replace")) > most:
        kept = kept[: len(kept) // 2]
    if len(kept) == len(data):
        return data
    return kept.decode("utf-8", "ignore").encode() + f"... ({len(data)} bytes in all)".encode()


class Recorder:
    """Keeps what comes of a run: of each stream `cap` bytes, half from its beginning and half from its end.

    Output goes to `progress` as it comes.
    """

    def __init__(self, cap: int, *, strip_ansi: bool = False, progress: OutputStream | None = None) -> None:
        self.showing = Showing()
        self.display, self.result = self.showing.display, self.showing.result
        self._progress = progress
        self._streams = {name: _Stream(cap, strip_ansi=strip_ansi) for name in ("stdout", "stderr")}

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
        return self._streams[stream].read()

    def shared(self, most: int) -> tuple[Captured, Captured]:
        """Return both streams in `most` characters together; where they do not fit, each has at least half."""
        out, err = self.read("stdout"), self.read("stderr")
        if len(out.text) + len(err.text) <= most:
            return out, err
        for_err = min(len(err.text), max(most // 2, most - len(out.text)))
        return self._streams["stdout"].read(most - for_err), self._streams["stderr"].read(for_err)

    def _pass_on(self, stream: str, data: bytes) -> None:
        if self._progress is not None and data:
            self._progress.feed(stream, data)
