"""Reads audit records from a file and those that were closed before it, newest first, a bounded part at a time."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Self

from sandpod_gateway.audit.act import Record
from sandpod_gateway.audit.chain import MARK, MAX_LINE
from sandpod_gateway.audit.sinks import closed_files, file_number

SCAN_BYTES: Final = 4 * 2**20  # that one look reads; what it does not reach is for the next one
MAX_END: Final = 2**62
_BLOCK: Final = 2 * MAX_LINE


class Place(NamedTuple):
    """Where to read on: before that byte of that file. A file keeps its number when it is closed."""

    number: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the place of a cursor. Raises ValueError."""
        number, end = text.split(".")
        if not (number.isdecimal() and end.isdecimal() and len(text) <= 32):  # noqa: PLR2004 - more than any has
            raise ValueError("no place")
        return cls(int(number), int(end))

    def __str__(self) -> str:
        return f"{self.number}.{self.end}"


def read_back(
    path: Path, before: Place | None, wanted: Callable[[Record], bool], limit: int
) -> tuple[list[Record], Place | None]:
    """Return the last records that are wanted, and where to read on, or None at the beginning. Raises OSError."""
    found: list[Record] = []
    numbers = [file_number(each) for each in closed_files(path)]
    newest, room = max(numbers, default=0) + 1, SCAN_BYTES
    number, end = before or Place(newest, MAX_END)
    for each in sorted({*numbers, newest}, reverse=True):
        if each > number:
            continue
        with suppress(FileNotFoundError), _open(path, each, newest) as file:
            end = min(end if each == number else MAX_END, os.fstat(file.fileno()).st_size)
            while end:
                if room <= 0:
                    return found, Place(each, end)
                start = max(0, end - _BLOCK)
                block = os.pread(file.fileno(), end - start, start)
                room -= _BLOCK
                # The first line is whole only at the beginning of the file. One that fills the block is no record.
                whole = (block.find(b"\n") + 1) % len(block) if start else 0
                for line in reversed(block[whole:].splitlines(keepends=True)):
                    end -= len(line)
                    record = _record(line)
                    if record is not None and wanted(record):
                        found.append(record)
                        if len(found) == limit:
                            return found, Place(each, end)
    return found, None


def _open(path: Path, number: int, newest: int) -> BinaryIO:
    try:
        return path.with_name(f"{path.name}.{number:06d}").open("rb")
    except FileNotFoundError:
        if number != newest:
            raise
        return path.open("rb")


def _record(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and MARK in record else None
