"""How values read on a page. Pure."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

_STEP: Final = 1024.0
_MINUTE, _HOUR = 60, 3600


def size(count: float) -> str:
    """Return bytes in a unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < _STEP:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _STEP
    return f"{count:.1f} TiB"


def duration(seconds: float) -> str:
    """Return seconds in a unit that fits."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s" if seconds % 1 else f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.1f} min" if seconds < _HOUR else f"{seconds / _HOUR:.1f} h"


def day(text: str | None) -> str:
    """Return the day of an RFC 3339 time."""
    return (text or "")[:10]


def clock(text: str | None) -> str:
    """Return an RFC 3339 time as people write it, in UTC."""
    return (text or "")[:19].replace("T", " ")


def is_past(text: str | None) -> bool:
    """Return whether an RFC 3339 time is over."""
    return text is not None and datetime.fromisoformat(text) <= datetime.now(UTC)


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "size": size,
    "duration": duration,
    "day": day,
    "clock": clock,
    "is_past": is_past,
}
