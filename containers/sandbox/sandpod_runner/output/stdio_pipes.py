"""A program's standard streams, seen from the runner: output to frames, frames to input.

Output is read as fast as it can be sent, so that a slow reader slows the program; unread input is kept up to a limit.
"""

import asyncio
import os
from dataclasses import dataclass, field
from typing import Final, Self

from sandpod_runner.output.pipe_reader import PIECE

MAX_WAITING_INPUT: Final = 8 * 1024 * 1024
"""Input of one run that its program has not read yet, bytes. More of it ends the run."""


class Input:
    """The writing end of a pipe that becomes a program's input; closed here."""

    def __init__(self, fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._waiting = bytearray()
        self._ending = False
        self.taken = 0  # bytes that were given
        os.set_blocking(fd, False)

    def feed(self, data: bytes) -> bool:
        """Take input, and return whether it could be kept."""
        self.taken += len(data)
        if self._fd < 0 or self._ending:
            return True  # a program that closed its input, or what comes after the end, is nobody's loss
        if len(self._waiting) + len(data) > MAX_WAITING_INPUT:
            return False
        was_waiting = bool(self._waiting)
        self._waiting += data
        if not was_waiting:
            self._write()
        return True

    def end(self) -> None:
        """Close the input after all that was given."""
        self._ending = True
        if not self._waiting:
            self.close()

    def close(self) -> None:
        """Close it now and forget what was not read."""
        if self._fd >= 0:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1
        self._waiting.clear()

    def _write(self) -> None:
        try:
            while self._waiting:
                count = os.write(self._fd, memoryview(self._waiting)[:PIECE].tobytes())
                del self._waiting[:count]
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._write)
            return
        except OSError:
            self.close()
            return
        self._loop.remove_writer(self._fd)
        if self._ending:
            self.close()


class Pairs:
    """Pipes that are being made for a program: what nobody keeps is closed, whatever happens meanwhile."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._open:
            os.close(fd)

    def open(self) -> tuple[int, int]:
        """Return the reading and the writing end of a new pipe. Raises OSError: No more descriptors can be had."""
        ends = os.pipe2(os.O_CLOEXEC)
        self._open.update(ends)
        return ends

    def keep(self, *fds: int) -> None:
        """Leave these open: they are somebody else's now."""
        self._open.difference_update(fds)


@dataclass(slots=True)
class Pipes:
    """The runner's ends of a program's streams."""

    stdin: Input | None
    outputs: dict[str, int] = field(default_factory=dict)
    shown: int | None = None

    def close(self) -> None:
        """Close what is still open."""
        if self.stdin is not None:
            self.stdin.close()
        for fd in (*self.outputs.values(), *([] if self.shown is None else [self.shown])):
            os.close(fd)
        self.outputs, self.shown = {}, None


def make_pipes(*, stdin: bool, shows: bool) -> tuple[Pipes, list[int]]:
    """Return the runner's ends and the program's: input (or none), output, errors, what it shows. Raises OSError."""
    with Pairs() as pairs:
        (out, out_write), (err, err_write) = pairs.open(), pairs.open()
        shown, *theirs_too = pairs.open() if shows else (None,)
        # Last, as nothing may fail after it.
        read, *ours_too = pairs.open() if stdin else (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC),)
        theirs = [read, out_write, err_write, *theirs_too]
        pairs.keep(*theirs, *ours_too, out, err, *([] if shown is None else [shown]))
    return Pipes(Input(ours_too[0]) if stdin else None, {"stdout": out, "stderr": err}, shown), theirs
