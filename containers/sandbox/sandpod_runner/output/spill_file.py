"""Blocks of a run's log, and the files in the workspace for those that have no room in memory.

They count in the workspace's quota, and a full disk is no fault: output that can't be written is dropped. Programs can
change or remove these files: what is read is checked. Writing is not left to a thread: it goes to the system's cache,
in pieces of 64 KiB.
"""

import contextlib
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from sandpod_runner.ipc.descriptors import closing
from sandpod_runner.protocol.messages import HIDDEN

FILE_SIZE: Final = 16 * 1024 * 1024  # bytes of one run's file
TOTAL: Final = 64 * 1024 * 1024  # bytes of all files together
MARK: Final = 4  # bytes of a mark of a block
_OVERHEAD: Final = 512  # what a block takes in addition to its data and marks, bytes
_PREFIX: Final = "log-"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Marks: TypeAlias = "array[int]"
Piece = tuple[int, int, bytes]  # number of the stream, offset in that stream, data


@dataclass(slots=True)
class Block:
    """Consecutive output."""

    start: int  # cursor of its first byte
    offsets: tuple[int, int]  # bytes of each stream before it
    data: bytes | bytearray = field(repr=False)
    # For each stretch of one stream its length and, in the lowest bit, the stream's number.
    marks: Marks = field(repr=False)

    @property
    def end(self) -> int:
        """Cursor after its last byte."""
        return self.start + len(self.data)

    @property
    def cost(self) -> int:
        """Bytes that it takes in memory."""
        return len(self.data) + MARK * len(self.marks) + _OVERHEAD

    def pieces(self, cursor: int) -> Iterator[Piece]:
        """Yield what is at the cursor and after it."""
        at, offsets = self.start, list(self.offsets)
        view = memoryview(self.data)
        for mark in self.marks:
            length, stream = mark >> 1, mark & 1
            skip = max(0, cursor - at)
            if skip < length:
                begin = at - self.start + skip
                yield stream, offsets[stream] + skip, view[begin : begin + length - skip].tobytes()
            at += length
            offsets[stream] += length


@dataclass(frozen=True, slots=True)
class Extent:
    """A block that lies in the spill: its data at `position`, its marks behind them, `length` bytes in all."""

    start: int
    end: int
    offsets: tuple[int, int]
    position: int
    length: int


class SpillFolder:
    """The folder of these files, which may take `total` bytes together."""

    def __init__(self, workspace: str, *, total: int = TOTAL) -> None:
        self._path = os.path.join(workspace, HIDDEN)
        self.free = total  # bytes that all files together may still take
        self.make_room: Callable[[], bool] = lambda: False  # gives something back, and returns whether there was any

    def clear(self) -> None:
        """Remove what another runner left here: a workspace may be older than its sandbox."""
        with contextlib.suppress(OSError):
            self.remove(*(name for name in os.listdir(self._path) if name.startswith(_PREFIX)))

    def create(self) -> tuple[int, str]:
        """Return a new file's descriptor and name. Raises OSError: There is no room, or no such folder."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._path, mode=0o700)
        name = f"{_PREFIX}{os.urandom(8).hex()}"
        with closing(os.open(self._path, _FOLDER)) as folder:
            return os.open(name, _FLAGS, 0o600, dir_fd=folder), name

    def remove(self, *names: str) -> None:
        """Remove files, and the folder with the last one."""
        with contextlib.suppress(OSError), closing(os.open(self._path, _FOLDER)) as folder:
            for name in names:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
        with contextlib.suppress(OSError):
            os.rmdir(self._path)

    def take(self, size: int) -> bool:
        """Take so many bytes of what all may have, and return whether they were there."""
        while self.free < size:
            if not self.make_room():
                return False
        self.free -= size
        return True


class SpillFile:
    """One run's file, written in a circle: made with its first block, as large as it may and can be."""

    def __init__(self, folder: SpillFolder, *, size: int = FILE_SIZE) -> None:
        self._folder = folder
        self._limit = size
        self._fd = -1
        self._name = ""
        self._next = 0
        self.extents: deque[Extent] = deque()
        self.size = 0  # bytes of the file

    def put(self, block: Block) -> None:
        """Take a block over the oldest ones, or drop it where there is no room for it."""
        data = b"".join((block.data, block.marks))
        if len(data) > self._limit:
            return
        if self._next + len(data) > self._limit:
            self._turn()
        if not self._write(data):
            # The disk or the share of it is full: from now on the circle is as large as the file could become.
            if len(data) > self.size:
                return
            self._limit = self.size
            self._turn()
            if not self._write(data):
                return
        self.extents.append(Extent(block.start, block.end, block.offsets, self._next, len(data)))
        self._next += len(data)

    def load(self, extent: Extent) -> Block | None:
        """Return a block; None, and forget it, when somebody changed what was written."""
        length = extent.end - extent.start
        try:
            raw = os.pread(self._fd, extent.length, extent.position)
        except OSError:
            raw = b""
        marks = array("I")
        if len(raw) == extent.length:
            marks.frombytes(raw[length:])
        if sum(mark >> 1 for mark in marks) != length:
            self.extents.remove(extent)
            return None
        return Block(extent.start, extent.offsets, raw[:length], marks)

    def close(self) -> None:
        """Remove the file."""
        self.extents.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._folder.remove(self._name)
        self._folder.free += self.size
        self.size = self._next = 0

    def _write(self, data: bytes) -> bool:
        """Write at the next place and return whether all of it could be."""
        end = self._next + len(data)
        grown = max(0, end - self.size)
        if not self._folder.take(grown):
            return False
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd, self._name = self._folder.create()
            self._forget(self._next, end)
            if os.pwrite(self._fd, data, self._next) == len(data):
                self.size += grown
                return True
        self._folder.free += grown
        return False

    def _turn(self) -> None:
        """Go on at the file's beginning: what is left behind the place is the oldest."""
        self._forget(self._next, self._limit + 1)
        self._next = 0

    def _forget(self, begin: int, end: int) -> None:
        while self.extents:
            oldest = self.extents[0]
            if oldest.position >= end or oldest.position + oldest.length <= begin:
                break
            self.extents.popleft()
