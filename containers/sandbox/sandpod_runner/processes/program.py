"""Programs that the launcher has started, and how they and what they leave behind are ended."""

import asyncio
import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any, Final

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import Exit

logger = logging.getLogger(__name__)

KILL_ROUNDS: Final = 10
_KILL_WAIT: Final = 0.5  # seconds from one round of killing to the next
SWEEP_SECONDS: Final = 5.0  # longest sweep
FREEZE_AFTER: Final = 2  # rounds of killing that did not end it
_WAIT: Final = 0.05  # seconds to wait for killed processes before looking again
_LAST: Final = 1.0  # seconds at the end of a sweep in which processes must keep appearing for the last resort
_GROWING: Final = 10  # rounds in a row in which there was a new one


class LostError(Exception):
    """The process that was to start a program is gone, or could not start it."""


class Program:
    """A process that was asked for. `pid` is set first, then `ended`; where there never was one, `pid` is LostError."""

    def __init__(self, fds: list[int]) -> None:
        loop = asyncio.get_running_loop()
        self.fds = fds  # which it is asked for with, kept until it is there to ask again, and closed here
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
        """Kill it with all that came from it, in rounds, until it (or `over`, if given) has ended."""
        over = over or self.ended
        for attempt in range(KILL_ROUNDS):
            if over.done():
                break
            self._end(freeze=attempt > 0)
            await asyncio.wait({over}, timeout=_KILL_WAIT)

    def begin(self, pid: int) -> None:
        """Record the process that it became."""
        self.close_fds()
        with contextlib.suppress(OSError):  # it has been reaped already, or this kernel has no such handles
            self._handle = os.pidfd_open(pid)
        if not self.pid.done():
            self.pid.set_result(pid)

    def fail(self, why: str) -> None:
        """Record that there is no process and will be none."""
        self.close_fds()
        if not self.pid.done():
            self.pid.set_exception(LostError(why))
            self.end(Exit(None))

    def end(self, how: Exit) -> bool:
        """Record that the process has ended, and return whether that was known: it may have reported it itself."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
        known = self.ended.done()
        if not known:
            self.ended.set_result(how)
        return known

    def close_fds(self) -> None:
        """Close the descriptors that it is asked for with: it is there, or never will be."""
        for fd in set(self.fds):
            os.close(fd)
        self.fds = []

    def _end(self, *, freeze: bool) -> None:
        if self.alive:
            process_tree.end_trees([self.pid.result()], freeze=freeze)


async def sweep(
    reap: Callable[[], None],
    strays: Callable[[], set[int]],
    ends: Callable[[], int],
    died: asyncio.Event,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Kill what ended programs leave behind, processes that became the runner's own children, until none is left.

    What is slow to end, in the kernel or without processor time, is left in the end. `reap` waits for all children that
    have ended, `strays` returns the processes to end, and `died` is set whenever a child has ended. `ends` returns how
    many programs have ended so far: each may leave new strays, which is nothing unusual.
    """
    deadline = clock() + SWEEP_SECONDS
    known: set[int] = set()
    rounds = growing = 0
    ended = ends()
    while True:
        died.clear()
        reap()
        found = strays()
        if not found:
            return
        left = deadline - clock()
        if left < 0:
            logger.warning("%d processes of ended programs could not be ended", len(found))
            return
        explained, ended = ended != ends(), ends()
        growing = growing + 1 if left < _LAST and found - known and not explained else 0
        known |= found
        process_tree.end_trees(found, freeze=rounds >= FREEZE_AFTER)
        if growing >= _GROWING and os.getpid() == 1:
            # What keeps forking away from every scan is met by the one signal that the kernel sends to all at
            # once. It takes the zygote and other runs too; a sandbox that goes on is worth that.
            logger.warning("a program forks faster than it can be ended: all processes are killed")
            os.kill(-1, signal.SIGKILL)
        rounds += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(died.wait(), _WAIT)
