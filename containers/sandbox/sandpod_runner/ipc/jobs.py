"""What the runner asks the zygote to start, and what the zygote answers. Pure; both sides of that socket use it.

A job is too large for one message, so it travels as a file in memory whose descriptor is sent: the zygote never reads
it, only the forked process does. Messages back have one fixed size: nothing that a program could tamper with is parsed.
"""

from __future__ import annotations

import marshal
import os
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import NamedTuple


@dataclass(frozen=True)
class Job:
    """A program to start."""

    env: dict[str, str] = field(repr=False)
    rlimits: list[tuple[int, int]]
    cwd: str = "/"
    # Program and arguments to `exec`, or empty for Python code in the forked process itself.
    command: list[str] = field(default_factory=list)
    code: bytes = field(default=b"", repr=False)
    file: str = ""  # the real file that holds the code
    args: list[str] = field(default_factory=list)
    # Whether the process becomes a context, which gets its code cell by cell: of Python, or of the command.
    context: bool = False
    terminal: bool = False  # whether descriptor 0 becomes the terminal of its session


@dataclass(frozen=True)
class Exit:
    """How a program ended."""

    status: int | None  # as from `wait`, or None where nobody saw it
    cpu: float = 0.0  # seconds of processor time, children included
    max_rss: int = 0  # peak memory of the largest process, bytes


class Kind(IntEnum):
    """What a message of the zygote is about."""

    READY = 0
    FORKED = 1
    FAILED = 2
    EXITED = 3
    CONNECTS = 4


class Message(NamedTuple):
    """A message of the zygote."""

    kind: Kind
    number: int = 0
    pid: int = 0
    status: int = 0  # as from `wait` (EXITED), or the system's error number (FAILED)
    cpu: float = 0.0  # seconds of processor time, children included (EXITED)
    max_rss: int = 0  # peak memory of the largest process, bytes (EXITED)

    def pack(self) -> bytes:
        """Return the bytes of the message."""
        return _MESSAGE.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Message:
        """Return the message that the bytes are. Raises ValueError, struct.error: They are none."""
        kind, *fields = _MESSAGE.unpack(data)
        return cls(Kind(kind), *fields)


_MESSAGE = Struct("=iqiidq")
MESSAGE_SIZE = _MESSAGE.size
REQUEST = Struct("=q")
"""A request to the zygote: its number. The descriptors come with it: the job, then 0, 1, 2 and so on of the program."""
MAX_FDS = 8
CHANNEL = 4  # the place among the descriptors of what Python code shows things on, or of a context's socket


def write_job(job: Job) -> int:
    """Return the descriptor of a file in memory that holds the job."""
    fd = os.memfd_create("job", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        # All Pythons from 3.4 on read format 4: the two sides may be of different versions.
        file.write(marshal.dumps(tuple(vars(job).values()), 4))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def read_job(fd: int) -> Job:
    """Return the job in the file, and close it."""
    with open(fd, "rb") as file:
        # Written by the runner alone, into a file that no program has ever had open.
        return Job(*marshal.loads(file.read()))  # noqa: S302 - see the line above
