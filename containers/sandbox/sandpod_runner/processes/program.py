"""What passes between the launcher and those who have programs started. It does nothing by itself."""

import asyncio
import os
import socket
from dataclasses import dataclass, field

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import Exit


class LostError(Exception):
    """The process that was to start a program is gone, or could not start it."""


@dataclass(slots=True, eq=False)
class Program:
    """A process that was asked for. `pid` is set first, then `ended`; `pid` fails with LostError where it never was."""

    pid: "asyncio.Future[int]"
    ended: "asyncio.Future[Exit]"

    def abandon(self) -> None:
        """Kill it as soon as it is there: nobody waits for it any more."""
        self.pid.add_done_callback(_kill)


@dataclass(slots=True)
class Wish:
    """A program that was asked for and is not told of yet; its descriptors are kept to ask again."""

    program: Program
    fds: list[int]

    def close(self) -> None:
        """Let go of the descriptors."""
        while self.fds:
            os.close(self.fds.pop())


@dataclass(slots=True)
class Link:
    """One zygote."""

    pid: int
    sock: socket.socket
    pending: dict[int, Wish] = field(default_factory=dict)
    ready: bool = False
    unread: bool = False
    """Whether it ended before it had read all that it was asked for."""


def _kill(pid: "asyncio.Future[int]") -> None:
    if pid.exception() is None:
        process_tree.end_trees([pid.result()])
