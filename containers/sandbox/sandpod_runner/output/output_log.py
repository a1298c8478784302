"""The bounded log of a run's output, from which a stream that comes later reads what it missed.

A cursor is a place in the order in which the bytes of both streams were read. The oldest bytes go first: into the spill
file, if there is one, and else they are lost, which shows as a gap.
"""

from array import array
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Final

from sandpod_runner.output.spill_file import MARK, Block, Extent, Piece, SpillFile

STREAMS: Final = ("stdout", "stderr")
BLOCK: Final = 64 * 1024  # largest block that small pieces are gathered in, bytes: so much is dropped at once
_START: Final = attrgetter("start")
_ADOPT: Final = BLOCK // 2  # pieces of this size are kept as they came, without copying them


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read."""

    dropped: int  # bytes after the cursor that was asked for which are lost; `pieces` come after them
    cursor: int
    pieces: list[Piece]


class OutputLog:
    """The log of one run: `memory` bytes of it in memory, and older output in the spill."""

    def __init__(self, memory: int, spill: SpillFile | None = None) -> None:
        self._memory = memory
        self._spill = spill
        self._blocks: deque[Block] = deque()
        self._held = 0
        self._largest = min(BLOCK, memory // 4)
        self.counts = (0, 0)  # bytes of each stream that were appended
        self.end = 0  # cursor after all that was appended

    @property
    def size(self) -> int:
        """Bytes that it takes, in memory and in its spill."""
        return self._held + (self._spill.size if self._spill is not None else 0)

    def append(self, stream: int, data: bytes) -> None:
        """Keep a piece of a stream."""
        length, small = len(data), len(data) < _ADOPT
        block = self._blocks[-1] if self._blocks else None
        # One that was kept as it came is never added to.
        growing = small and block is not None and isinstance(block.data, bytearray)
        if block is None or not growing or block.cost + length + MARK > self._largest:
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
                self._held += MARK
        self.end += length
        stdout, stderr = self.counts
        self.counts = (stdout, stderr + length) if stream else (stdout + length, stderr)
        while self._held > self._memory:
            self._let_go()

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
        extents = self._spill.extents if self._spill is not None else ()
        for block in chain[Block | Extent](extents, self._blocks):
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
        if self._spill is not None:
            self._spill.close()

    def _let_go(self) -> None:
        block = self._blocks.popleft()
        self._held -= block.cost
        if self._spill is not None:
            self._spill.put(block)

    def _block_at(self, cursor: int) -> Block | None:
        """Return the block with the cursor in it, or else the next one."""
        spill = self._spill
        while spill is not None and (extents := spill.extents) and cursor < extents[-1].end:
            index = max(0, bisect_right(extents, cursor, key=_START) - 1)
            extent = extents[index]
            if extent.end <= cursor:
                extent = extents[index + 1]
            block = spill.load(extent)
            if block is not None:
                return block
        index = max(0, bisect_right(self._blocks, cursor, key=_START) - 1)
        return self._blocks[index] if self._blocks else None
