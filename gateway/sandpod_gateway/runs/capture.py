"""Keeps what a program wrote, head and tail in full and the middle counted, without control sequences. Pure.

It bounds what one run costs the gateway: two caps of bytes a stream, however much the program writes.
"""

import codecs
import re
from typing import Final, NamedTuple

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


class Capture:
    """The head and tail of one stream of bytes, half of `cap` each."""

    def __init__(self, cap: int) -> None:
        self._head_cap = cap // 2
        self._tail_cap = cap - self._head_cap
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(data)
        room = self._head_cap - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            # Trimmed now and then, not each time: moving the tail costs as much as it is long.
            if len(self._tail) > 2 * self._tail_cap:
                del self._tail[: -self._tail_cap]

    def read(self, most: int | None = None) -> Captured:
        """Return the stream as text, bad UTF-8 replaced, no character split where it was cut.

        Of `most` characters half are from the start, half from the end; by default it is all that is kept.
        """
        if self.total <= self._head_cap + self._tail_cap:
            text = (self._head + self._tail).decode("utf-8", "replace")
            if most is None or len(text) <= most:
                return Captured(text, self.total, truncated=False)
            head = tail = text
        else:
            head = _Decoder("replace").decode(self._head)
            tail = _CONTINUATION.sub(b"", self._tail[-self._tail_cap :], 1).decode("utf-8", "replace")
        if most is not None:
            head, tail = head[: most // 2], tail[max(0, len(tail) - (most - most // 2)) :]
        # A byte that is no UTF-8 became U+FFFD, which has three bytes in it.
        left_out = self.total - sum(len(text.encode()) - 2 * text.count("\ufffd") for text in (head, tail))
        return Captured(f"{head}\n[... {left_out} bytes left out ...]\n{tail}", self.total, truncated=True)


class Stripper:
    """Takes the control sequences out of one stream that comes in pieces."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next piece and return what can be shown of the stream by now."""
        data = self._held + data
        end = len(data) - unfinished_sequence(data)
        self._held = data[end:]
        return strip(data[:end])

    def finish(self) -> bytes:
        """Return what was held back: the sequence that it began did not come."""
        held, self._held = self._held, b""
        return held


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
