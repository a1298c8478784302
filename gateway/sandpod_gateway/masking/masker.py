"""Finds secrets' values in bytes and puts `[secret NAME]` in their place, in linear time and bounded memory. Pure.

All forms of all values are one Aho-Corasick automaton. Of overlapping occurrences the first counts, and of those that
begin at one place the longest, so that what a stream becomes does not depend on the pieces in which it comes.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from sandpod_gateway.masking.forms import forms

ANCHOR: Final = 8
"""Bytes at the beginning of a form by which a longer unfinished one is found: no form is shorter."""
SHOWN: Final = 3
"""Most bytes of an unfinished form that are shown where output ends."""
MAX_CANDIDATES: Final = 32
"""Possible beginnings of a form that are compared in full; where there are more, more is held back than need be."""


class Masker:
    """Masks some values, of at least 8 bytes each.

    Attributes:
        longest: Bytes of the longest form of a value.
    """

    def __init__(self, values: Iterable[tuple[str, str]]) -> None:
        """Take pairs of a secret's name and its value; where values share a form, the first one's name is shown."""
        names: dict[bytes, str] = {}
        for name, value in values:
            for form in forms(value):
                names.setdefault(form, name)
        self._forms = list(names)
        self._shown = [f"[secret {name}]".encode() for name in names.values()]
        # Of the implementations the one whose making takes linear time too.
        nfa = Implementation.ContiguousNFA
        self._whole = BytesAhoCorasick(self._forms, MatchKind.LeftmostLongest, nfa)
        self._begun: defaultdict[bytes, list[int]] = defaultdict(list)
        for index, form in enumerate(self._forms):
            self._begun[form[:ANCHOR]].append(index)
        self._anchors = BytesAhoCorasick(list(self._begun), MatchKind.Standard, nfa)
        self._short = {form[:size]: index for index, form in enumerate(self._forms) for size in range(1, ANCHOR)}
        self.longest = max(map(len, self._forms), default=1)

    def matches(self, data: bytes) -> Iterator[tuple[bytes, int, int]]:
        """Yield what to show in place of each occurrence, where it begins and where it ends."""
        return ((self._shown[index], start, end) for index, start, end in self._whole.find_matches_as_indexes(data))

    def mask(self, data: bytes) -> bytes:
        """Return bytes that are whole, masked."""
        return self.part(data, 0, len(data))

    def part(self, data: bytes, start: int, stop: int) -> bytes:
        """Return some of the bytes, masked; what is before and after them shows what they are a part of."""
        parts, done = [], start
        for shown, begin, end in self.matches(data):
            if end > start and begin < stop:
                parts += [data[done : max(begin, done)], shown]
                done = min(end, stop)
        return b"".join((*parts, data[done:stop]))

    def text(self, text: str) -> str:
        """Return a text, masked."""
        if len(text) < ANCHOR and text.isascii():
            return text
        data = text.encode("utf-8", "surrogatepass")
        masked = self.mask(data)
        return text if masked == data else masked.decode("utf-8", "surrogatepass")

    def json(self, value: Any) -> Any:
        """Return a JSON value with all texts in it masked, names of fields too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(name): self.json(each) for name, each in value.items()}
        return [self.json(each) for each in value] if isinstance(value, list) else value

    def unfinished(self, data: bytes) -> tuple[int, bytes]:
        """Return where the longest beginning of a form starts that the data ends with, and what to show in its place.

        It may be further ahead than that, where there are many possible ones. Without one it is the data's end.
        """
        tail = max(0, len(data) - self.longest + 1)
        found = self._anchors.find_matches_as_indexes(memoryview(data)[tail:], overlapping=True)
        for count, (_, start, end) in enumerate(found):
            rest = data[tail + start :]
            for index in self._begun[data[tail + start : tail + end]]:
                begins = len(self._forms[index]) > len(rest) and self._forms[index].startswith(rest)
                if begins or count >= MAX_CANDIDATES:
                    return tail + start, self._shown[index]
        for size in range(min(ANCHOR - 1, len(data)), 0, -1):
            if (short := self._short.get(data[-size:])) is not None:
                return len(data) - size, self._shown[short]
        return len(data), b""


class StreamMasker:
    """Masks one stream. It holds back what may be the beginning of a value: less than the longest form."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._held = b""
        self._instead = b""  # what is shown in place of what is held, should nothing more come
        self._known = 0  # bytes of what is held that came before what is asked for

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes, and return what can be shown by now."""
        data = self._held + data
        hold, self._instead = self._masker.unfinished(data)
        parts, done = [], 0
        for shown, start, end in self._masker.matches(data):
            if start >= hold:
                break
            parts += [data[max(done, self._known) : start], shown]
            done = end
        hold = max(hold, done)
        parts.append(data[max(done, self._known) : hold])
        self._held, self._known = data[hold:], max(0, self._known - hold)
        return b"".join(parts)

    def skip(self, data: bytes) -> None:
        """Take what comes before the part of the stream that is asked for: nothing of it is returned."""
        self.feed(data)
        self._known = len(self._held)

    @property
    def held(self) -> tuple[int, int]:
        """How many bytes at the end are held, and how many of these were shown all the same."""
        return len(self._held), self._known

    def pause(self) -> bytes:
        """Return what is held and too short to say anything, for someone who waits for it; what follows may hide it."""
        if len(self._held) > SHOWN:
            return b""
        new, self._known = self._held[self._known :], len(self._held)
        return new

    def finish(self) -> bytes:
        """Return the rest. No more of the stream comes here, though it may go on elsewhere.

        So the beginning of a value is masked too, unless it is too short to say anything.
        """
        held, new, self._held, self._known = self._held, self._held[self._known :], b"", 0
        return self._instead if new and len(held) > SHOWN else new
