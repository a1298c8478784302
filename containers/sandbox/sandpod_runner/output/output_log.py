"""The bounded log of a run's output, from which a stream that comes later reads what it missed.

A cursor is a place in the order in which the bytes of both streams were read. The oldest bytes go first: into the run's
spill file, if it has one, and else they are lost, which shows as a gap. The file counts in the workspace's quota, and
what a full disk does not take is dropped; programs can change or remove it, so what is read is checked. It is written
in the event loop: it goes to the system's cache, in pieces of 64 KiB.
"""

import contextlib
import os
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

from sandpod_runner.ipc.descriptors import closing
from sandpod_runner.protocol.messages import HIDDEN

STREAMS: Final = ("stdout", "stderr")
BLOCK: Final = 64 * 1024  # largest block that small pieces are gathered in, bytes: so much is dropped at once
_END: Final = attrgetter("end")
_ADOPT: Final = BLOCK // 2  # pieces of this size are kept as they came, without copying them
FILE_SIZE: Final = 16 * 1024 * 1024  # bytes of one run's file
TOTAL: Final = 64 * 1024 * 1024  # bytes of all files together
_MARK: Final = 4  # bytes of a mark of a block
_OVERHEAD: Final = 512  # what a block takes in addition to its data and marks, bytes
_PREFIX: Final = "log-"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Piece = tuple[int, int, bytes]  # number of the stream, offset in that stream, data


@dataclass(slots=True)
class Block:
    """Consecutive output."""

    start: int  # cursor of its first byte
    offsets: tuple[int, int]  # bytes of each stream before it
    data: bytes | bytearray = field(repr=False)
    # For each stretch of one stream its length and, in the lowest bit, the stream's number.
    marks: "array[int]" = field(repr=False)

    @property
    def end(self) -> int:
        """Cursor after its last byte."""
        return self.start + len(self.data)

    @property
    def cost(self) -> int:
        """Bytes that it takes in memory."""
        return len(self.data) + _MARK * len(self.marks) + _OVERHEAD

    def pieces(self, cursor: int) -> Iterator[Piece]:
        """Yield what is at the cursor and after it."""
        at, offsets, view = self.start, list(self.offsets), memoryview(self.data)
        for mark in self.marks:
            length, stream = mark >> 1, mark & 1
            skip = max(0, cursor - at)
            if skip < length:
                begin = at - self.start + skip
                yield stream, offsets[stream] + skip, view[begin : begin + length - skip].tobytes()
            at += length
            offsets[stream] += length


class Extent(NamedTuple):
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
        self._fd, self._name = -1, ""
        self._next = 0  # where the next block comes
        self.extents: deque[Extent] = deque()
        self.size = 0  # bytes of the file

    def put(self, block: Block) -> None:
        """Take a block over the oldest ones, or drop it where there is no room for it."""
        if len(block.data) + _MARK * len(block.marks) > self._limit:
            return
        data = b"".join((block.data, block.marks))
        if self._next + len(data) > self._limit:
            self._turn()
        if not self._write(data):
            if len(data) > self.size:
                return
            self._limit = self.size  # the disk or the share of it is full: the circle gets no larger
            self._turn()
            if not self._write(data):
                return
        self.extents.append(Extent(block.start, block.end, block.offsets, self._next, len(data)))
        self._next += len(data)

    def load(self, extent: Extent) -> Block | None:
        """Return a block; None, and forget it, when somebody changed what was written."""
        length = extent.end - extent.start
        raw = b""
        with contextlib.suppress(OSError):
            raw = os.pread(self._fd, extent.length, extent.position)
        marks = array("I", raw[length:] if len(raw) == extent.length else b"")
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


_NO_SPILL: Final = SpillFile(SpillFolder(""), size=0)  # keeps nothing


class Reading(NamedTuple):
    """What was read; `dropped` bytes after the cursor that was asked for are lost, and `pieces` come after them."""

    dropped: int
    cursor: int
    pieces: list[Piece]


class OutputLog:
    """The log of one run: `memory` bytes of it in memory, and older output in the spill."""

    def __init__(self, memory: int, spill: SpillFile | None = None) -> None:
        self._memory = memory
        self._spill = spill or _NO_SPILL
        self._blocks: deque[Block] = deque()
        self._held = 0
        self._largest = min(BLOCK, memory // 4)
        self.counts = (0, 0)  # bytes of each stream that were appended
        self.end = 0  # cursor after all that was appended

    @property
    def size(self) -> int:
        """Bytes that it takes, in memory and in its spill."""
        return self._held + self._spill.size

    def append(self, stream: int, data: bytes) -> None:
        """Keep a piece of a stream."""
        length, small = len(data), len(data) < _ADOPT
        block = self._blocks[-1] if self._blocks else None
        # One that was kept as it came is never added to.
        growing = small and block is not None and isinstance(block.data, bytearray)
        if block is None or not growing or block.cost + length + _MARK > self._largest:
            kept = bytearray(data) if small else data
            block = Block(self.end, self.counts, kept, array("I", (length << 1 | stream,)))
            self._blocks.append(block)
            self._held += block.cost
        else:
            block.data += data
            self._held += length
            if block.marks[-1] & 1 == stream:
                block.marks[-1] += length << 1
            else:
                block.marks.append(length << 1 | stream)
                self._held += _MARK
        self.end += length
        stdout, stderr = self.counts
        self.counts = (stdout, stderr + length) if stream else (stdout + length, stderr)
        while self._held > self._memory:
            block = self._blocks.popleft()
            self._held -= block.cost
            self._spill.put(block)

    def read(self, cursor: int, limit: int, most: int) -> Reading:
        """Return what is at a cursor and after it, up to the next gap: at most so many bytes and so many pieces."""
        dropped, pieces = 0, list[Piece]()
        while limit > 0 and cursor < self.end and len(pieces) < most:
            block = self._block_at(cursor)
            start = self.end if block is None else block.start
            if start > cursor:
                if pieces:
                    break
                dropped += start - cursor
                cursor = start
            for stream, offset, data in block.pieces(cursor) if block is not None else ():
                part = data[:limit]
                pieces.append((stream, offset, part))
                cursor += len(part)
                limit -= len(part)
                if limit == 0 or len(pieces) == most:
                    break
        return Reading(dropped, cursor, pieces)

    def seek(self, stdout: int, stderr: int) -> int:
        """Return a cursor from which on all is found that comes after these offsets; some before them may be, too."""
        cursor = 0
        for block in chain[Block | Extent](self._spill.extents, self._blocks):
            if block.offsets[0] > stdout or block.offsets[1] > stderr:
                break
            cursor = block.start
        return cursor

    def cost_from(self, cursor: int) -> int:
        """Return what all that comes after a cursor takes in memory, bytes."""
        return sum(block.cost for block in self._blocks if block.end > cursor)

    def clear(self) -> None:
        """Lose everything that it holds; what was counted stays counted."""
        self._blocks.clear()
        self._held = 0
        self._spill.close()

    def _block_at(self, cursor: int) -> Block | None:
        """Return the block with the cursor in it, or else the next one."""
        extents = self._spill.extents
        while extents and cursor < extents[-1].end:
            block = self._spill.load(extents[bisect_right(extents, cursor, key=_END)])
            if block is not None:
                return block
        return self._blocks[bisect_right(self._blocks, cursor, key=_END)] if self._blocks else None
