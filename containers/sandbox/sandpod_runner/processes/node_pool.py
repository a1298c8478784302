"""Keeps a Node process ready that has started but has no program yet, so that a JavaScript run starts in milliseconds.

The spare waits in `bootstrap.cjs` for one job on descriptor 3 and reports its end on descriptor 4; its streams are made
in advance. It is kept from the first JavaScript run on, since it takes memory.
"""

import asyncio
import contextlib
import os
from dataclasses import replace
from typing import Final

from sandpod_runner.ipc.jobs import Job
from sandpod_runner.output.stdio_pipes import Pipes
from sandpod_runner.processes.environment import PACKAGES
from sandpod_runner.processes.launcher import Launcher
from sandpod_runner.processes.program import LostError, Program

BOOTSTRAP: Final = os.path.join(PACKAGES, "sandpod_runner", "javascript", "inside", "bootstrap.cjs")
REFILL_DELAY = 0.015
"""Seconds after a spare was taken until the next one is made: starting Node would slow down a short run, and takes too
long to begin it any later."""


class NodePool:
    """One spare at most: a Node process, and its pipes with the `job` that it waits for."""

    def __init__(self, launcher: Launcher, node: str, base: Job) -> None:
        self._launcher = launcher
        # The flag lets it find out whether code is an ES module without running it.
        self._job = replace(base, command=[node, "--experimental-vm-modules", BOOTSTRAP])
        self._spare: tuple[Program, Pipes] | None = None
        self._refill: asyncio.TimerHandle | None = None

    def take(self) -> tuple[Program, Pipes]:
        """Return the spare, or a Node process that is just starting. Raises LostError, OSError: None can be started."""
        self._launcher.catch_up()
        if self._refill is None:
            self._refill = asyncio.get_running_loop().call_later(REFILL_DELAY, self._prepare)
        return self._take()

    def _prepare(self) -> None:
        self._refill = None
        with contextlib.suppress(LostError, OSError):  # the next run makes its own, or says why it can't
            self._spare = self._take()

    def _take(self) -> tuple[Program, Pipes]:
        spare, self._spare = self._spare, None
        if spare is not None:
            program, pipes = spare
            if not program.ended.done():
                return spare
            pipes.close()
        return self._launcher.start_piped(self._job, stdin=True, shows=True, gets_job=True)
