"""Reads a pipe without waiting for it, as long as it may."""

import asyncio
import os
from collections.abc import Callable
from typing import Final

PIECE: Final = 64 * 1024  # bytes that are read at a time: what a pipe holds
_LAST_PIECES: Final = 16
"""Pieces to read after the end: more than a pipe holds, unless somebody is left who goes on writing."""


class PipeReader:
    """The reading end of a pipe, closed here; `take` gets each piece and returns whether to read on."""

    def __init__(self, fd: int, take: Callable[[bytes], bool]) -> None:
        self.take = take
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._reading = False
        os.set_blocking(fd, False)

    @property
    def open(self) -> bool:
        """Whether something may still come."""
        return self._fd >= 0

    def resume(self) -> None:
        """Read whatever comes."""
        if not self._reading and self._fd >= 0:
            self._reading = True
            self._loop.add_reader(self._fd, self._read)

    def pause(self) -> None:
        """Leave what comes in the pipe: the writer waits when it is full."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def drain(self) -> None:
        """Read what is left in the pipe after the writer's end."""
        self.pause()
        for _ in range(_LAST_PIECES):
            if not self._read():
                break

    def close(self) -> None:
        """Read nothing more."""
        self.pause()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> bool:
        """Read one piece, and return whether there may be more."""
        if self._fd < 0:
            return False
        try:
            data = os.read(self._fd, PIECE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data or not self.take(data):
            self.close()
        return self._fd >= 0
