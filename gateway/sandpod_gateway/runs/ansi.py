"""Takes terminal control sequences (ECMA-48: colours, cursor moves, titles) out of a program's output. Pure."""

import re
from typing import Final

# A control sequence; a string that ends with BEL or ST (titles, links); an escape of two bytes or more.
_SEQUENCE: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-OQ-WYZ\\`-~])")
_BEGUN: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\Z")
_LONGEST: Final = 4096  # bytes of a sequence that is not whole yet; a longer one is none, and stays


def strip(data: bytes) -> bytes:
    """Return the bytes without the sequences that are whole."""
    return _SEQUENCE.sub(b"", data) if b"\x1b" in data else data


def unfinished(data: bytes | bytearray) -> int:
    """Return how many bytes at the end are the beginning of a sequence that is not whole yet."""
    start = max(0, len(data) - _LONGEST)
    last = data.find(b"\x1b", start)
    match = _BEGUN.search(data, last) if last >= 0 else None
    return len(data) - match.start() if match is not None else 0


class Stripper:
    """Strips one stream that comes in pieces."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next piece and return what can be shown of the stream by now."""
        data = self._held + data
        end = len(data) - unfinished(data)
        self._held = data[end:]
        return strip(data[:end])

    def finish(self) -> bytes:
        """Return what was held back: the sequence that it began did not come."""
        held, self._held = self._held, b""
        return held
