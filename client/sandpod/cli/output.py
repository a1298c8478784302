"""What is printed: tables, JSON, progress, and nothing from a sandbox or server that could steer a terminal."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TextIO

_MIB: Final = 2**20
_EVERY: Final = 0.1  # seconds between two pictures of the progress


def printable(text: str) -> str:
    """Return a text with all that is not printable as escapes: line breaks, control sequences, bidirectional marks."""
    return text if text.isprintable() else ascii(text)[1:-1]


def say(text: str) -> None:
    """Print a sentence on standard error."""
    sys.stderr.write(f"sandpod: {printable(text)}\n")


def print_json(value: Any) -> None:
    """Print one JSON value; ASCII, so that it can't steer a terminal either."""
    sys.stdout.write(json.dumps(value, default=dataclasses.asdict) + "\n")


def print_lines(text: str) -> None:
    """Print lines as they are; on a terminal, with escapes in place of what could steer it."""
    sys.stdout.write("\n".join(map(printable, text.split("\n"))) if sys.stdout.isatty() else text)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: bool = False) -> None:
    """Print rows in columns; with `numbers`, those of numbers alone are aligned to the right."""
    given = [list(row) for row in rows]
    table = [list(titles), *([printable("" if cell is None else str(cell)) for cell in row] for row in given)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    aligned = [str.ljust] * len(titles)
    if numbers and given:
        columns = zip(*given, strict=True)
        aligned = [str.ljust if any(isinstance(cell, str) for cell in column) else str.rjust for column in columns]
    for cells in table:
        sys.stdout.write("  ".join(map(_placed, aligned, cells, widths)).rstrip() + "\n")


def _placed(align: Callable[[str, int], str], cell: str, width: int) -> str:
    return align(cell, width)


def write_raw(to: TextIO, text: str) -> None:
    """Write what a program wrote, at once and as it is."""
    to.buffer.write(text.encode(errors="replace"))
    to.buffer.flush()


class Progress:
    """A line on a terminal that says how far a copy is."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        self._name = printable(name)
        self._is_on = not quiet and sys.stderr.isatty()
        self._begun = self._shown = time.monotonic()

    def __call__(self, done: int, size: int) -> None:
        """Show how far it is."""
        now = time.monotonic()
        if self._is_on and (done == size or now - self._shown >= _EVERY):
            self._shown = now
            speed = done / max(now - self._begun, 0.001) / _MIB
            amount = f"{done / _MIB:.1f} of {size / _MIB:.1f} MiB, {speed:.0f} MiB/s"
            full = 20 * done // max(size, 1)
            sys.stderr.write(f"\r\x1b[K[{'#' * full}{' ' * (20 - full)}] {amount}  {self._name[-60:]}")
            sys.stderr.flush()

    def end(self) -> None:
        """Remove the line."""
        if self._is_on:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
