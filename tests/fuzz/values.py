"""Turns bytes into choices and values, so that a change of a byte is a small change of what is tried. Pure."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

_TEXTS: Final = (
    *("", ".", "..", "../x", "a.txt", "/etc/passwd", "/workspace", "default", "python", "shell", "\0", "\\x2f", "a/b"),
    *("print(1)", "1 + 1", "[1, 2]", '{"a": 1}', "NaN", "1e999", "-1", "\ud800", "\u202e", "x" * 5000, "get", "put"),
)
_NUMBERS: Final = (0, 1, -1, 0.5, 2**31, 2**63, -(2**63), 10**400, float("inf"), float("nan"))
_DEEPEST: Final = 4


class Source:
    """Bytes that are used up; where there are none left, each is 0."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        """Whether there are any left."""
        return self._at < len(self._data)

    def bytes(self, count: int) -> bytes:
        """Return the next ones."""
        taken = self._data[self._at : self._at + count]
        self._at += max(count, 1)
        return taken

    def below(self, bound: int) -> int:
        """Return a number from 0 on."""
        return int.from_bytes(self.bytes(2 if bound > 256 else 1)) % bound

    def choice(self, items: Sequence[T]) -> T:
        """Return one of some items."""
        return items[self.below(len(items))]

    def value(self, depth: int = 0) -> Any:  # noqa: PLR0911 - one for each kind
        """Return something that JSON can say."""
        kinds = 9 if depth < _DEEPEST else 6
        match self.below(kinds):
            case 0:
                return None
            case 1:
                return bool(self.below(2))
            case 2:
                return self.below(65536) - 1000
            case 3:
                return self.choice(_NUMBERS)
            case 4:
                return self.choice(_TEXTS)
            case 5:
                return self.bytes(self.below(64)).decode("utf-8", "replace")
            case 6:
                return [self.value(depth + 1) for _ in range(self.below(4))]
            case _:
                return {str(self.choice(_TEXTS)): self.value(depth + 1) for _ in range(self.below(4))}
