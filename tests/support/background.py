"""Reads background runs as callers do: a read that waits answers with whatever has come by then."""

from collections.abc import Awaitable, Callable
from typing import Any

LINE = 64
"""Bytes of a numbered line."""


async def read_until(
    call: Callable[..., Awaitable[Any]], run_id: str, text: str | None = None, **arguments: Any
) -> dict[str, Any]:
    """Read a run until its output begins with a text, or without one until it has ended and all is read.

    Returns:
        The last reading, with all of stdout.
    """
    cursor, stdout = 0, ""
    while True:
        reading = await call("read_run", run_id=run_id, cursor=cursor, wait=20, **arguments)
        cursor, stdout = reading["cursor"], stdout + reading["stdout"]
        over = reading["result"] is not None
        assert text is None or not over or stdout.startswith(text), f"The run ended with {stdout!r}."
        if over or (text is not None and stdout.startswith(text)):
            return {**{key: reading[key] for key in ("state", "cursor", "sandbox", "result")}, "stdout": stdout}


def lines(start: int, size: int) -> str:
    """Return what comes at a place of numbered lines."""
    first = start // LINE
    text = "".join(f"{number:0{LINE - 1}}\n" for number in range(first, first + size // LINE + 2))
    return text[start - first * LINE :][:size]
