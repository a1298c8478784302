"""What a run showed, and the forms of a cell's last value: as much of both as an answer takes. No I/O."""

from dataclasses import dataclass, field
from typing import Final

from sandpod_gateway.api.run_results import Rich
from sandpod_gateway.content import MAX_PICTURES, PICTURES, Picture, json_size
from sandpod_runner.protocol import messages as protocol

MAX_SHOWN: Final = 160 * 1024  # bytes of all else that a run shows, as they are sent
MAX_VALUE: Final = 96 * 1024  # bytes of all forms of a last value, but for pictures, as they are sent
MAX_TEXT: Final = 32 * 1024  # bytes of a last value as plain text; it is cut there, and other forms are left out whole
_GROWTH: Final = 14  # most bytes that one of a text takes in an answer: a control character grows to 6 and then 7 more
TEXTS: Final = frozenset(protocol.MIME_TYPES) - PICTURES


@dataclass(slots=True)
class Showing:
    """Takes what a run shows."""

    pictures: list[Picture] = field(default_factory=list)
    displays: list[Rich] = field(default_factory=list)
    value: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    _shown: int = 0
    _valued: int = 0

    def display(self, mime: str, index: int, data: bytes) -> None:
        """Take one form of something that the program showed; forms of one thing have the same index."""
        # The runner keeps to its limit; what is in the sandbox may have become the runner.
        if len(self.displays) > protocol.MAX_DISPLAYS:
            self.dropped += 1
            return
        text, size = (None, 0) if mime in PICTURES else _fitting(mime, data, MAX_SHOWN - self._shown)
        if text is None and not self._takes_picture(mime, data):
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
        if mime in self.value:
            self.dropped += 1
            return
        text, size = _fitting(mime, _cut(data) if mime == "text/plain" else data, MAX_VALUE - self._valued)
        if text is None:
            self.dropped += 1
            return
        self._valued += size
        self.value[mime] = text

    def _takes_picture(self, mime: str, data: bytes) -> bool:
        return mime in PICTURES and sum(len(picture.data) for picture in self.pictures) + len(data) <= MAX_PICTURES


def sent_size(text: str) -> int:
    """Return the bytes that a text takes in an answer: in its structured form, and in its text."""
    return 2 * json_size(text)


def _fitting(mime: str, data: bytes, room: int) -> tuple[str | None, int]:
    """Return a form as text and the bytes that it takes in an answer; None if it is of no known type or takes more."""
    if mime not in TEXTS or len(data) > room:
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
