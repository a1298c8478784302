"""Small things that are done with open descriptors, on both sides."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import Final

_OUT_OF_THE_WAY: Final = 100  # programs may count on descriptors 3 and up being free
_MOST: Final = 4096  # descriptors of a runner


def move_away(fd: int) -> int:
    """Return where a descriptor that has just come is now: out of the way of the program's own."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    finally:
        os.close(fd)


def place(fds: list[int]) -> None:
    """Make these, which lie above or where they belong, the descriptors 0, 1, 2 and so on, for `exec` too."""
    for number, fd in enumerate(fds):
        if fd == number:
            os.set_inheritable(fd, True)
        else:
            os.dup2(fd, number, inheritable=True)
    for fd in set(fds):
        if fd >= len(fds):
            os.close(fd)


def close_others(kept: int) -> None:
    """Close all but the standard streams and this one: whatever was left to this process is not its programs'."""
    os.closerange(3, kept)
    os.closerange(kept + 1, _MOST)


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close a descriptor afterwards."""
    try:
        yield fd
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, however little each write takes. Raises OSError: As `os.write` does."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
