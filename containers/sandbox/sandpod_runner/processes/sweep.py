"""Ends what ended programs leave behind: processes that became the runner's own children."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from sandpod_runner.ipc import process_tree

logger = logging.getLogger(__name__)

SECONDS: Final = 5.0  # longest sweep
FREEZE_AFTER: Final = 2  # rounds of killing that did not end it
_WAIT: Final = 0.05  # seconds to wait for killed processes before looking again
_LAST: Final = 1.0  # seconds at the end of a sweep in which processes must keep appearing for the last resort
_GROWING: Final = 10  # rounds in a row in which there was a new one


class Sweeper:
    """Kills stray processes until none is left.

    `reap` waits for all children that have ended, and `strays` returns the processes to end. `ends` returns how many
    programs have ended so far: each may leave new strays, which is nothing unusual.
    """

    def __init__(
        self,
        reap: Callable[[], None],
        strays: Callable[[], set[int]],
        ends: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reap = reap
        self._strays = strays
        self._ends = ends
        self._clock = clock
        self.died = asyncio.Event()  # to be set whenever a child has ended

    async def sweep(self) -> None:
        """End them all. One that is slow to end, as in the kernel or without processor time, is left in the end."""
        deadline = self._clock() + SECONDS
        known: set[int] = set()
        rounds = growing = 0
        ends = self._ends()
        while True:
            self.died.clear()
            self._reap()
            strays = self._strays()
            if not strays:
                return
            left = deadline - self._clock()
            if left < 0:
                logger.warning("%d processes of ended programs could not be ended", len(strays))
                return
            explained, ends = ends != self._ends(), self._ends()
            growing = growing + 1 if left < _LAST and strays - known and not explained else 0
            known |= strays
            process_tree.end_trees(strays, freeze=rounds >= FREEZE_AFTER)
            if growing >= _GROWING and os.getpid() == 1:
                # What keeps forking away from every scan is met by the one signal that the kernel sends to all at
                # once. It takes the zygote and other runs too; a sandbox that goes on is worth that.
                logger.warning("a program forks faster than it can be ended: all processes are killed")
                os.kill(-1, signal.SIGKILL)
            rounds += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.died.wait(), _WAIT)
