"""Keeps what a program wrote: head and tail in full, the middle counted. Pure.

It bounds what one run costs the gateway: two caps of bytes a stream, however much the program writes.
"""

import codecs
from dataclasses import dataclass
from typing import Final

_CONTINUATION: Final = 0x80  # 10xxxxxx: a byte inside a UTF-8 character
_CONTINUATION_MASK: Final = 0xC0
_LONGEST_REST: Final = 3  # a UTF-8 character has at most three continuation bytes


@dataclass(frozen=True, slots=True)
class Captured:
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
            head, tail = _whole_head(bytes(self._head)), _whole_tail(bytes(self._tail[-self._tail_cap :]))
        if most is not None:
            head, tail = head[: most // 2], tail[max(0, len(tail) - (most - most // 2)) :]
        left_out = self.total - _bytes_of(head) - _bytes_of(tail)
        return Captured(f"{head}\n[... {left_out} bytes left out ...]\n{tail}", self.total, truncated=True)


def _bytes_of(text: str) -> int:
    """Return how many bytes of a stream a text stands for; a bad one became U+FFFD, which has three in UTF-8."""
    return len(text.encode()) - 2 * text.count("\ufffd")


def _whole_head(data: bytes) -> str:
    """Decode, leaving out a character that was cut at the end."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=False)


def _whole_tail(data: bytes) -> str:
    """Decode, leaving out a character that was cut at the start."""
    start = 0
    while start < min(_LONGEST_REST, len(data)) and data[start] & _CONTINUATION_MASK == _CONTINUATION:
        start += 1
    return data[start:].decode("utf-8", "replace")
