"""What passes between the launcher and those who have programs started. It does nothing by itself."""

import asyncio
import contextlib
import os
import select
import socket
from dataclasses import dataclass, field
from typing import Any, Final

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import Exit

KILL_ROUNDS: Final = 10
_KILL_WAIT: Final = 0.5  # seconds from one round of killing to the next


class LostError(Exception):
    """The process that was to start a program is gone, or could not start it."""


@dataclass(slots=True, eq=False)
class Program:
    """A process that was asked for. `pid` is set first, then `ended`; `pid` fails with LostError where it never was."""

    pid: "asyncio.Future[int]"
    ended: "asyncio.Future[Exit]"
    _handle: int = -1

    def abandon(self) -> None:
        """Kill it as soon as it is there: nobody waits for it any more."""
        self.pid.add_done_callback(lambda pid: None if pid.exception() else self._end(freeze=False))

    def signal(self, number: int, *, tree: bool = True) -> None:
        """Send a signal to it and, in a tree, to all that came from it."""
        if self.alive:
            pid = self.pid.result()
            others = process_tree.trees([pid], process_tree.parents()) - {pid} if tree else set()
            # Itself first: a shell whose child ends before it gets the signal would report the child's end as its own.
            process_tree.send([pid, *others], number)

    async def kill(self, over: "asyncio.Future[Any] | None" = None) -> bool:
        """Kill it with all that came from it, and return whether it (or what is waited for, `over`) has ended."""
        over = over or self.ended
        for attempt in range(KILL_ROUNDS):
            if over.done():
                break
            self._end(freeze=attempt > 0)
            await asyncio.wait({over}, timeout=_KILL_WAIT)
        return over.done()

    def begin(self, pid: int) -> None:
        """Note the process that it became."""
        with contextlib.suppress(OSError):  # it has been reaped already, or this kernel has no such handles
            self._handle = os.pidfd_open(pid)
        if not self.pid.done():
            self.pid.set_result(pid)

    def end(self, how: Exit) -> bool:
        """Note that the process has ended, and return whether that was known: it may have said so itself before."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
        known = self.ended.done()
        if not known:
            self.ended.set_result(how)
        return known

    @property
    def alive(self) -> bool:
        """Whether its number is still its own: it may be another's after its end, also before that is reported."""
        if not self.pid.done() or self.pid.exception():
            return False
        if self._handle < 0:
            return not self.ended.done()
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return not poll.poll(0)

    def _end(self, *, freeze: bool) -> None:
        if self.alive:
            process_tree.end_trees([self.pid.result()], freeze=freeze)


@dataclass(slots=True)
class Wish:
    """A program that was asked for and has not been reported yet; its descriptors are kept to ask again."""

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
    unread: bool = False  # whether it ended before it had read all that it was asked for
