"""What passes between the launcher and those who have programs started. It does nothing by itself."""

import asyncio
import contextlib
import os
import select
from typing import Any, Final

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import Exit

KILL_ROUNDS: Final = 10
_KILL_WAIT: Final = 0.5  # seconds from one round of killing to the next


class LostError(Exception):
    """The process that was to start a program is gone, or could not start it."""


class Program:
    """A process that was asked for. `pid` is set first, then `ended`; where there never was one, `pid` is LostError."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.pid: asyncio.Future[int] = loop.create_future()
        self.ended: asyncio.Future[Exit] = loop.create_future()
        self._handle = -1
        # Nobody may be waiting for the process when it turns out that there is none.
        self.pid.add_done_callback(lambda pid: pid.exception())

    @property
    def number(self) -> int | None:
        """The process's number, once there is a process."""
        return self.pid.result() if self.pid.done() and not self.pid.exception() else None

    @property
    def alive(self) -> bool:
        """Whether the number is still its own: it may be another's after its end, also before that is reported."""
        if self.number is None:
            return False
        if self._handle < 0:
            return not self.ended.done()
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return not poll.poll(0)

    def abandon(self) -> None:
        """Kill it as soon as it is there: nobody waits for it any more."""
        self.pid.add_done_callback(lambda _: self._end(freeze=False))

    def signal(self, number: int, *, tree: bool = True) -> None:
        """Send a signal to it and, in a tree, to all that came from it."""
        if self.alive:
            pid = self.pid.result()
            others = process_tree.trees([pid], process_tree.parents()) - {pid} if tree else set()
            # Itself first: a shell whose child ends before it gets the signal would report the child's end as its own.
            process_tree.send([pid, *others], number)

    async def kill(self, over: "asyncio.Future[Any] | None" = None) -> None:
        """Kill it with all that came from it, until it (or what is waited for, `over`) has ended, or in vain."""
        over = over or self.ended
        for attempt in range(KILL_ROUNDS):
            if over.done():
                break
            self._end(freeze=attempt > 0)
            await asyncio.wait({over}, timeout=_KILL_WAIT)

    def begin(self, pid: int) -> None:
        """Note the process that it became."""
        with contextlib.suppress(OSError):  # it has been reaped already, or this kernel has no such handles
            self._handle = os.pidfd_open(pid)
        if not self.pid.done():
            self.pid.set_result(pid)

    def fail(self, why: str) -> None:
        """Note that there is no process and will be none."""
        if not self.pid.done():
            self.pid.set_exception(LostError(why))
            self.end(Exit(None))

    def end(self, how: Exit) -> bool:
        """Note that the process has ended, and return whether that was known: it may have reported it itself."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
        known = self.ended.done()
        if not known:
            self.ended.set_result(how)
        return known

    def _end(self, *, freeze: bool) -> None:
        if self.alive:
            process_tree.end_trees([self.pid.result()], freeze=freeze)
