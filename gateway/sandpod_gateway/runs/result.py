"""What a run showed, and the forms of a cell's last value: how much of it an answer takes. No I/O.

Owned by `running.py` and, for background runs, by `background.py`. It bounds what one run costs the gateway, and keeps
answers below what clients take: an answer holds each text twice, as structured content and once more as JSON text.
"""

import json
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel

from sandpod_gateway.api.run_results import Rich, RunOutput
from sandpod_gateway.content import MAX_PICTURES, PICTURES, Picture
from sandpod_gateway.runs.hints import about_dropped
from sandpod_runner.protocol import messages as protocol

MAX_ANSWER: Final = 900 * 1024
"""Bytes of an answer as it is sent: clients refuse an event of 1 MiB."""
MAX_SHOWN: Final = 160 * 1024
"""Bytes of all else that a run shows, as they are sent."""
MAX_VALUE: Final = 96 * 1024
"""Bytes of all forms of a last value, but for pictures, as they are sent."""
MAX_TEXT: Final = 32 * 1024
"""Bytes of a last value as plain text; it is cut there, and other forms are left out whole."""
_GROWTH: Final = 14
"""Most bytes that one of a text takes in an answer: a control character grows to 6 and then 7 more."""
TEXTS: Final = frozenset(protocol.MIME_TYPES) - PICTURES


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of a background run, and, with its result, the pictures that go beside it."""

    result: RunOutput
    pictures: list[Picture] = field(default_factory=list)


@dataclass(slots=True)
class Showing:
    """Takes what a run shows. It is a sink of the connection's reader that lets output go by."""

    pictures: list[Picture] = field(default_factory=list)
    displays: list[Rich] = field(default_factory=list)
    value: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    _shown: int = 0
    _valued: int = 0

    def output(self, stream: str, offset: int, data: bytes) -> None:
        """Take output, which is not kept here."""

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

    def add_to(self, output: RunOutput) -> Reading:
        """Return what was read of a run that has ended with what it showed: as much of it as an answer takes."""
        result = output.result
        if result is None:
            return Reading(output)
        pictures, displays, dropped = list(self.pictures), list(self.displays), self.dropped
        while True:
            hint = " ".join(filter(None, (result.hint, about_dropped(dropped)))) or None
            count = result.displays_dropped + dropped
            told = {"displays": displays, "displays_dropped": count, "hint": hint, "result": self.value or None}
            whole = result.model_copy(update=told)
            read = output.model_copy(update={"result": whole})
            if not displays or answer_size(read, pictures) <= MAX_ANSWER:
                return Reading(read, pictures)
            dropped += 1
            if displays.pop().mime_type in PICTURES:
                pictures.pop()

    def _takes_picture(self, mime: str, data: bytes) -> bool:
        return mime in PICTURES and sum(len(picture.data) for picture in self.pictures) + len(data) <= MAX_PICTURES


def answer_size(model: BaseModel, pictures: list[Picture]) -> int:
    """Return the bytes of an answer on the wire: as JSON, as text beside it, and its pictures.

    Some servers and libraries on the way escape what is not ASCII: 12 bytes for a character outside the BMP.
    """
    encoded = sum(4 * -(-len(picture.data) // 3) for picture in pictures)
    return encoded + 2 * len(json.dumps(model.model_dump(mode="json")))


def sent_size(text: str) -> int:
    """Return the bytes that a text takes in an answer: in its structured form, and in its text."""
    return 2 * len(json.dumps(text))


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
