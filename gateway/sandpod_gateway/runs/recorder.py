"""What came of one run: head and tail of each stream, the middle counted, and what it showed. No I/O.

The connection's reader calls the methods of a sink, which never wait. What is kept does not grow with what comes.
"""

import codecs
import re
from typing import Final, NamedTuple

from sandpod_gateway.api.run_results import Rich
from sandpod_gateway.content import MAX_PICTURES, PICTURES, Picture, json_size
from sandpod_gateway.masking.masker import Masker, StreamMasker
from sandpod_gateway.runs.progress import OutputStream
from sandpod_runner.protocol import messages as protocol

MAX_SHOWN: Final = 160 * 1024  # bytes of all else that a run shows, as they are sent
MAX_VALUE: Final = 96 * 1024  # bytes of all forms of a last value, but for pictures, as they are sent
MAX_TEXT: Final = 32 * 1024  # bytes of a last value as plain text; it is cut there, and other forms are left out whole
_GROWTH: Final = 14  # most bytes that one of a text takes in an answer: a control character grows to 6 and then 7 more
_TEXTS: Final = frozenset(protocol.MIME_TYPES) - PICTURES

# Terminal control sequences (ECMA-48: colours, cursor moves, titles): a control sequence; a string that ends with BEL
# or ST (titles, links); an escape of two bytes or more.
_SEQUENCE: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-OQ-WYZ\\`-~])")
_BEGUN: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\Z")
_LONGEST: Final = 4096  # bytes of a sequence that is not whole yet; a longer one is none, and stays

_CONTINUATION: Final = re.compile(rb"\A[\x80-\xbf]{1,3}")  # what is left of a UTF-8 character that was cut
_Decoder: Final = codecs.getincrementaldecoder("utf-8")


class Captured(NamedTuple):
    """One stream as a result has it: text, bytes in all, and whether it was cut."""

    text: str
    total: int
    truncated: bool


class Stream:
    """One stream of output: its head and tail, half of `cap` bytes each, with or without control sequences, masked."""

    def __init__(self, cap: int, *, strip_ansi: bool = False, masker: Masker | None = None) -> None:
        self._head_cap = cap // 2
        self._tail_cap = cap - self._head_cap
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0
        self.strip_ansi = strip_ansi
        self._masker = StreamMasker(masker) if masker is not None else None
        self._held = b""  # the beginning of a control sequence that is not whole yet
        self._gap = False  # whether some of it was lost
        self.received = 0  # the offset up to which it has come, according to the sandbox
        self.taken = 0  # bytes that came: offsets are not added up, since a sandbox may send any

    def take(self, offset: int, data: bytes) -> bytes:
        """Keep what is new of a piece, and return what can be shown of the stream by now."""
        gap, end = offset - self.received, offset + len(data)
        data = data[max(-gap, 0) :]
        if not data:
            return b""
        self.received = end
        self.taken += len(data)
        if gap > 0:
            self._gap = True
            data = f"\n[... {gap} bytes lost ...]\n".encode() + data
        if self.strip_ansi:
            data = self._held + data
            end = len(data) - unfinished_sequence(data)
            data, self._held = strip(data[:end]), data[end:]
        return self._keep(self._masker.feed(data) if self._masker is not None else data)

    def look_back(self, data: bytes) -> None:
        """Take what came before the part that is read: a value may have begun there."""
        if self._masker is not None:
            self._masker.skip(strip(data) if self.strip_ansi else data)

    def finish(self) -> bytes:
        """Keep what was held back as the beginning of a sequence or value that never came, and return it."""
        held, self._held = self._held, b""
        if self._masker is not None:
            held = self._masker.feed(held) + self._masker.finish()
        return self._keep(held)

    def _keep(self, data: bytes) -> bytes:
        self._total += len(data)
        rest, room = data, self._head_cap - len(self._head)
        if room > 0:
            self._head += data[:room]
            rest = data[room:]
        self._tail += rest
        # Trimmed now and then, not each time: moving the tail costs as much as it is long.
        if len(self._tail) > 2 * self._tail_cap:
            del self._tail[: -self._tail_cap]
        return data

    def is_complete(self, written: int) -> bool:
        """Return whether all came that the program wrote, in bytes."""
        return not self._gap and written <= self.received

    def read(self, most: int | None = None) -> Captured:
        """Return the stream as text, bad UTF-8 replaced, no character split where it was cut.

        Of `most` characters half are from the start, half from the end; by default it is all that is kept.
        """
        if self._total <= self._head_cap + self._tail_cap:
            text = (self._head + self._tail).decode("utf-8", "replace")
            if most is None or len(text) <= most:
                return Captured(text, self._total, truncated=False)
            head = tail = text
        else:
            head = _Decoder("replace").decode(self._head)
            tail = _CONTINUATION.sub(b"", self._tail[-self._tail_cap :], 1).decode("utf-8", "replace")
        if most is not None:
            head, tail = head[: most // 2], tail[max(0, len(tail) - (most - most // 2)) :]
        # A byte that is no UTF-8 became U+FFFD, which has three bytes in it.
        left_out = self._total - sum(len(text.encode()) - 2 * text.count("\ufffd") for text in (head, tail))
        return Captured(f"{head}\n[... {left_out} bytes left out ...]\n{tail}", self._total, truncated=True)


class Recorder:
    """Keeps `cap` bytes of each stream and as much of what a run showed as an answer takes; feeds `progress`.

    All of it, but pictures, is masked.
    """

    def __init__(
        self,
        cap: int,
        *,
        strip_ansi: bool = False,
        progress: OutputStream | None = None,
        masker: Masker | None = None,
    ) -> None:
        self.strip_ansi = strip_ansi
        self.masker = masker
        self.streams = {name: Stream(cap, strip_ansi=strip_ansi, masker=masker) for name in ("stdout", "stderr")}
        self.pictures: list[Picture] = []
        self.displays: list[Rich] = []
        self.value: dict[str, str] = {}  # the forms of a cell's last value
        self.dropped = 0  # displays and forms of the value that are not here
        self._shown = self._valued = 0  # bytes that both take in an answer
        self._progress = progress

    @property
    def progress_dropped(self) -> int:
        """Bytes of output that were not sent as progress."""
        return self._progress.dropped if self._progress is not None else 0

    def output(self, stream: str, offset: int, data: bytes) -> None:
        """Take a piece of output. After a lost connection it may overlap what came before, or leave a gap."""
        self._pass_on(stream, self.streams[stream].take(offset, data))

    def look_back(self, stream: str, data: bytes) -> None:
        """Take a piece of what came before the part that is read."""
        self.streams[stream].look_back(data)

    def finish(self) -> None:
        """Pass on what was held back: no more output comes."""
        for name, stream in self.streams.items():
            self._pass_on(name, stream.finish())

    def _pass_on(self, stream: str, data: bytes) -> None:
        if self._progress is not None and data:
            self._progress.feed(stream, data)

    def shared(self, most: int) -> tuple[Captured, Captured]:
        """Return both streams in `most` characters together; where they do not fit, each has at least half."""
        out, err = (stream.read() for stream in self.streams.values())
        if len(out.text) + len(err.text) <= most:
            return out, err
        for_err = min(len(err.text), max(most // 2, most - len(out.text)))
        return self.streams["stdout"].read(most - for_err), self.streams["stderr"].read(for_err)

    def display(self, mime: str, index: int, data: bytes) -> None:
        """Take one form of something that the program showed; forms of one thing have the same index."""
        # The runner keeps to its limit; what is in the sandbox may have become the runner.
        text, size = None, 0
        fits = len(self.displays) <= protocol.MAX_DISPLAYS
        if fits and mime in PICTURES:
            fits = sum(len(picture.data) for picture in self.pictures) + len(data) <= MAX_PICTURES
        elif fits:
            text, size = _fitting(mime, self._masked(data), MAX_SHOWN - self._shown)
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
        text, size, data = None, 0, self._masked(data)
        if mime not in self.value:
            text, size = _fitting(mime, _cut(data) if mime == "text/plain" else data, MAX_VALUE - self._valued)
        if text is None:
            self.dropped += 1
            return
        self._valued += size
        self.value[mime] = text

    def _masked(self, data: bytes) -> bytes:
        return self.masker.mask(data) if self.masker is not None else data


def _fitting(mime: str, data: bytes, room: int) -> tuple[str | None, int]:
    """Return a form as text and the bytes that it takes in an answer; None if it is of no known type or takes more."""
    if mime not in _TEXTS or len(data) > room:
        return None, 0
    text = data.decode("utf-8", "replace")
    size = 2 * json_size(text)  # in the answer's structured form, and in its text
    return (text, size) if size <= room else (None, 0)


def _cut(data: bytes) -> bytes:
    """Return plain text that is short enough, with what is missing said at its end."""
    kept = data[:MAX_TEXT]
    most = MAX_VALUE * 3 // 4  # the rest is for other forms
    while len(kept) * _GROWTH > most and 2 * json_size(kept.decode("utf-8", "replace")) > most:
        kept = kept[: len(kept) // 2]
    if len(kept) == len(data):
        return data
    return kept.decode("utf-8", "ignore").encode() + f"... ({len(data)} bytes in all)".encode()


def strip(data: bytes) -> bytes:
    """Return the bytes without the control sequences that are whole."""
    return _SEQUENCE.sub(b"", data) if b"\x1b" in data else data


def unfinished_sequence(data: bytes) -> int:
    """Return how many bytes at the end are the beginning of a control sequence that is not whole yet."""
    last = data.find(b"\x1b", max(0, len(data) - _LONGEST))
    match = _BEGUN.search(data, last) if last >= 0 else None
    return len(data) - match.start() if match is not None else 0


def unfinished_character(data: bytes) -> int:
    """Return how many bytes at the end are the beginning of a character that is not whole yet."""
    decoder = _Decoder("replace")
    decoder.decode(data[-3:])  # a character has at most four
    return len(decoder.getstate()[0])
