"""A program's standard streams, seen from the runner: pipes that are read and written without waiting for them.

Output is read as fast as it can be sent, so that a slow reader slows the program; unread input is kept up to a limit.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sandpod_runner.output.output_log import STREAMS

SHOWN: Final = "shown"
PIECE: Final = 64 * 1024  # bytes that are read or written at a time: what a pipe holds
_LAST_PIECES: Final = 16
"""Pieces to read after the end: more than a pipe holds, unless somebody is left who goes on writing."""
MAX_WAITING_INPUT: Final = 8 * 1024 * 1024
"""Input of one run that its program has not read yet, bytes. More of it ends the run."""


def forget(_: bytes) -> bool:
    """Take a piece of output that nobody wants."""
    return True


class PipeReader:
    """The reading end of a pipe, closed here; `take` gets each piece and returns whether to read on."""

    def __init__(self, fd: int) -> None:
        self.take: Callable[[bytes], bool] = forget
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
            self.take = forget  # what took it is not kept in memory

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


@dataclass(slots=True)
class Pipes:
    """A program's pipes: the runner's ends and, until they are passed on, the program's."""

    theirs: list[int] = field(default_factory=list)  # input, output, errors, job, what it shows
    outputs: dict[str, PipeReader] = field(default_factory=dict)  # by stream; under SHOWN what it shows
    stdin: Input | None = None
    job: Input | None = None  # what a spare Node process is given its program on

    def hand_over(self) -> list[int]:
        """Return the program's ends, which are the caller's from now on."""
        theirs, self.theirs = self.theirs, []
        return theirs

    def close_theirs(self) -> None:
        """Close the program's ends that are still here."""
        for fd in self.hand_over():
            os.close(fd)

    def close(self) -> None:
        """Close all that is still here."""
        self.close_theirs()
        for end in (*self.outputs.values(), self.stdin, self.job):
            if end is not None:
                end.close()


def open_pipes(*, stdin: bool, shows: bool, gets_job: bool = False) -> Pipes:
    """Return new pipes for a program. Raises OSError: No more descriptors can be had, and none stays open."""
    pipes = Pipes()

    def add_input() -> Input:
        read, write = os.pipe2(os.O_CLOEXEC)
        pipes.theirs.append(read)
        return Input(write)

    def add_output() -> PipeReader:
        read, write = os.pipe2(os.O_CLOEXEC)
        pipes.theirs.append(write)
        return PipeReader(read)

    try:
        if stdin:
            pipes.stdin = add_input()
        else:
            pipes.theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for name in STREAMS:
            pipes.outputs[name] = add_output()
        pipes.job = add_input() if gets_job else None
        if shows:
            pipes.outputs[SHOWN] = add_output()
    except OSError:
        pipes.close()
        raise
    return pipes
