"""Where lines are written: a file that is closed and numbered when it is full, or standard output.

Lines are written whole or not at all. All methods block, and are called by one thread.
"""

import errno
import fcntl
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from sandpod_gateway.audit.chain import MARK, MAX_LINE

_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MODE: Final = 0o600
_STDOUT: Final = 1


class Sink(Protocol):
    """A place for lines. Every method raises OSError where it can't do what it says."""

    name: str

    def open(self) -> dict[str, Any] | None:
        """Be ready for lines; return the last record that is there."""

    def write(self, line: bytes) -> None:
        """Add a line."""

    def sync(self) -> None:
        """Wait until what was written outlasts a crash of the machine, as far as the place can promise that."""

    def close(self) -> None:
        """Let go of the place."""


class StdoutSink:
    """Standard output, which in a pod is its log."""

    name = "stdout"

    def __init__(self, descriptor: int = _STDOUT) -> None:
        self._descriptor = descriptor
        self._torn = False

    def open(self) -> dict[str, Any] | None:
        """Do nothing."""
        return None

    def write(self, line: bytes) -> None:
        """Write a line."""
        if self._torn:
            line = b"\n" + line
        self._torn = True
        _write_all(self._descriptor, line)
        self._torn = False

    def sync(self) -> None:
        """Do nothing: whoever reads has it."""

    def close(self) -> None:
        """Do nothing."""


class FileSink:
    """A file, to which one process writes at a time."""

    name = "file"

    def __init__(self, path: Path, *, max_bytes: int, max_files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_files = max_files  # closed ones
        self._descriptor = -1
        self._id = (0, 0)

    def open(self) -> dict[str, Any] | None:
        """Open or make the file; return the last record in it, or in the newest closed one where it is new."""
        self._reopen()
        found = _last_record(self._descriptor)
        if found is None and (closed := closed_files(self._path)):
            with closed[-1].open("rb") as file:
                found = _last_record(file.fileno())
        return found

    def write(self, line: bytes) -> None:
        """Add a line, to a new file where this one is full, was moved or deleted."""
        size = self._size()
        if size and size + len(line) > self._max_bytes:
            self._rotate()
            size = 0
        try:
            _write_all(self._descriptor, line)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise

    def sync(self) -> None:
        """Wait for the disk."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.fdatasync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _size(self) -> int:
        with suppress(FileNotFoundError):
            found = self._path.lstat()
            if (found.st_dev, found.st_ino) == self._id:
                return found.st_size
        self._reopen()
        return os.fstat(self._descriptor).st_size

    def _reopen(self) -> None:
        descriptor = os.open(self._path, _FLAGS, _MODE)
        try:
            found = _claimed(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._id = descriptor, (found.st_dev, found.st_ino)

    def _rotate(self) -> None:
        closed = closed_files(self._path)
        number = file_number(closed[-1]) + 1 if closed else 1
        os.fdatasync(self._descriptor)
        self._path.rename(self._path.with_name(f"{self._path.name}.{number:06d}"))
        self._reopen()
        for old in closed[: max(0, len(closed) + 1 - self._max_files)]:
            old.unlink(missing_ok=True)


def _claimed(descriptor: int) -> os.stat_result:
    """Lock a file for this process, and let a line begin at its end."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "It is no regular file")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(error.errno, "Another process writes to it") from error
    if found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
        _write_all(descriptor, b"\n")  # the process before was ended in the middle of a line
    return found


def closed_files(path: Path) -> list[Path]:
    """Return the closed files of a file, oldest first."""
    found = (each for each in path.parent.iterdir() if each.name.startswith(f"{path.name}."))
    return sorted((each for each in found if file_number(each) > 0), key=file_number)


def file_number(path: Path) -> int:
    """Return the number of a closed file; 0 of any other."""
    text = path.name.rpartition(".")[2]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0  # noqa: PLR2004 - no file of ours


def _write_all(descriptor: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _last_record(descriptor: int) -> dict[str, Any] | None:
    size = os.fstat(descriptor).st_size
    lines = os.pread(descriptor, MAX_LINE, max(0, size - MAX_LINE)).splitlines()
    for line in reversed(lines):
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and MARK in record:
                return record
    return None
