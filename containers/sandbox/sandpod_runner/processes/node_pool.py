"""Keeps a Node process ready that has started but has no program yet, so that a JavaScript run starts in milliseconds.

The spare waits in `bootstrap.cjs` for one job on descriptor 3 and reports its end on descriptor 4; its streams are made
beforehand. It is kept from the first JavaScript run on, since it takes memory.
"""

import asyncio
import json
import os
from dataclasses import dataclass, replace
from typing import Final

from sandpod_runner.ipc.jobs import Job
from sandpod_runner.output.stdio_pipes import Input, Pairs, Pipes
from sandpod_runner.processes.languages import PACKAGES
from sandpod_runner.processes.launcher import Launcher
from sandpod_runner.processes.program import LostError, Program

BOOTSTRAP: Final = os.path.join(PACKAGES, "sandpod_runner", "javascript", "inside", "bootstrap.cjs")
REFILL_DELAY = 0.015
"""Seconds after a spare was taken until the next one is made: starting Node would slow down a short run, and takes too
long to begin it any later."""


@dataclass(slots=True)
class Spare:
    """A Node process that waits for its job."""

    program: Program
    pipes: Pipes
    job: Input

    def usable(self) -> bool:
        """Return whether it is still there."""
        pid = self.program.pid
        return not self.program.ended.done() and (not pid.done() or pid.exception() is None)

    def drop(self) -> None:
        """Close its streams: it ends when it finds that no job comes."""
        self.pipes.close()
        self.job.close()

    def begin(self, args: list[str], *, file: str, cwd: str, env: dict[str, str]) -> None:
        """Give it its program."""
        job = {"file": file, "cwd": cwd, "args": args, "env": env}
        # Surrogates can't be UTF-8; Node gets what the bytes look like.
        self.job.feed(json.dumps(job).encode())
        self.job.end()


class NodePool:
    """One spare at most."""

    def __init__(self, launcher: Launcher, node: str, base: Job) -> None:
        self._launcher = launcher
        self._base = base
        self._node = node
        self._spare: Spare | None = None
        self._refill: asyncio.TimerHandle | None = None

    def prepare(self) -> None:
        """Make a spare unless there is one."""
        self._refill = None
        if self._spare is None or not self._spare.usable():
            if self._spare is not None:
                self._spare.drop()
            try:
                self._spare = self._make()
            except (LostError, OSError):
                self._spare = None  # the next run makes its own, or says why it can't

    def take(self) -> Spare:
        """Return the spare, or a Node process that is just starting. Raises LostError: None can be started now."""
        self._launcher.catch_up()
        spare, self._spare = self._spare, None
        if self._refill is None:
            self._refill = asyncio.get_running_loop().call_later(REFILL_DELAY, self.prepare)
        if spare is not None:
            if spare.usable():
                return spare
            spare.drop()
        return self._make()

    def _make(self) -> Spare:
        # The flag lets it find out whether code is an ES module without running it.
        spec = replace(self._base, command=[self._node, "--experimental-vm-modules", BOOTSTRAP])
        with Pairs() as pairs:
            stdin, stdin_write = pairs.open()
            stdout, stdout_write = pairs.open()
            stderr, stderr_write = pairs.open()
            job, job_write = pairs.open()
            word, word_write = pairs.open()
            program = self._launcher.start(spec, [stdin, stdout_write, stderr_write, job, word_write])
            pairs.keep(stdin_write, stdout, stderr, job_write, word)
        return Spare(program, Pipes(Input(stdin_write), {"stdout": stdout, "stderr": stderr}, word), Input(job_write))
