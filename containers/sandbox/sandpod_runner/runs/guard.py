"""Ends what takes more memory or disk than the sandbox has, before the kernel or the node ends the whole sandbox.

It looks while there are runs or contexts, whose threads go on between cells. What is used comes from `limits`.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final, TypeAlias

from sandpod_runner.files.disk import DiskWatch
from sandpod_runner.ipc import process_tree
from sandpod_runner.limits.memory import MIB, Watch
from sandpod_runner.limits.threads import in_thread
from sandpod_runner.runs.context import Context
from sandpod_runner.runs.request import Stop
from sandpod_runner.runs.run import Run, Toolbox, out_of_memory

logger = logging.getLogger(__name__)

_AFTER_FAILURE: Final = 1.0  # seconds until the next look
Writer: TypeAlias = Run | Context
_Look: TypeAlias = Callable[[], Awaitable[float]]  # returns in how many seconds to look again


class Guard:
    """Looks again and again, from the start of a run on. `runs` are always those that are live now."""

    def __init__(self, toolbox: Toolbox, runs: Collection[Run]) -> None:
        self._memory = toolbox.memory
        self._contexts = toolbox.contexts
        self._runs = runs
        self._last: dict[DiskWatch, tuple[int, dict[Writer, int]]] = {}
        self._looks: list[_Look] = []
        if toolbox.memory is not None:
            self._looks.append(partial(self._look_at_memory, toolbox.memory))
        self._looks += [partial(self._look_at_disk, disk) for disk in (toolbox.storage.disk, toolbox.packages) if disk]
        self._tasks: dict[_Look, asyncio.Task[None]] = {}

    def begin(self) -> None:
        """Look from now on: a run is about to begin."""
        if self._memory is not None and not self._runs:
            self._memory.rest()
        for look in self._looks:
            if look not in self._tasks:
                self._tasks[look] = asyncio.get_running_loop().create_task(self._keep_looking(look))

    async def _keep_looking(self, look: _Look) -> None:
        """Look, and again after so many seconds, as long as there is anything that could grow."""
        while True:
            try:
                pause = await look()
            except Exception:
                # What programs do while they are looked at must not end this for good.
                logger.exception("a look at what the sandbox uses failed")
                pause = _AFTER_FAILURE
            await asyncio.sleep(pause)
            if not self._runs and not self._contexts.pids():
                del self._tasks[look]
                return

    async def _look_at_memory(self, memory: Watch) -> float:
        over, pause = memory.look()
        if over:
            self._end_largest(memory.limit)
        return pause

    def _end_largest(self, limit: int) -> None:
        if any(run.stopped and run.stopped.outcome == "out_of_memory" for run in self._runs):
            return  # what it gives back shows at the next look
        alone = [run.pid for run in self._runs if run.pid and run.context is None]
        if len(alone) == len(self._runs) == 1:
            # It would go on taking memory while its processes are looked for.
            process_tree.send(alone, signal.SIGSTOP)
        trees = self._trees()
        # Where nothing runs, what has grown is a thread, or something else that a cell left behind.
        suspects = {each: pids for each, pids in trees.items() if isinstance(each, Run)} or trees
        sizes = {each: process_tree.resident(pids) for each, pids in suspects.items()}
        if sizes:
            stop = out_of_memory(limit, [context.state for context in self._contexts.pids()])
            _end(max(sizes, key=lambda each: sizes[each]), stop, f"used up the sandbox's {limit // MIB} MiB")

    async def _look_at_disk(self, disk: DiskWatch) -> float:
        begin = time.monotonic()
        if begin < disk.due:
            return disk.due - begin  # short runs, one after another, would do nothing but look
        trees = self._trees()
        before, earlier = self._last.get(disk, (0, {}))
        if disk.is_steady():
            used, written = before, {each: process_tree.written(pids) for each, pids in trees.items()} | earlier
        else:
            used = await in_thread(partial(disk.used, set().union(*trees.values())))
            written = {each: process_tree.written(pids) for each, pids in trees.items()}
            if used > disk.limit:
                _end_writer(written, earlier, used - before, disk.whole)
        self._last[disk] = used, written
        pause = disk.pause(used, time.monotonic() - begin)
        disk.due = time.monotonic() + pause
        return pause

    def _trees(self) -> dict[Writer, set[int]]:
        """Return the processes of each live run, and of each context that runs no cell: its threads may go on."""
        roots: dict[Writer, int] = {run: run.pid for run in self._runs if run.pid}
        busy, table = set(roots.values()), process_tree.parents()
        roots |= {context: pid for context, pid in self._contexts.pids().items() if pid not in busy}
        return {each: process_tree.trees([pid], table) for each, pid in roots.items()}


def _end_writer(written: dict[Writer, int], before: dict[Writer, int], growth: int, whole: str) -> None:
    """End the run or idle context that has written most since the last count, if the folder has grown by it.

    A program that deletes files writes a little too, and must be able to: so nothing ends while the folder shrinks, nor
    for what a run wrote that has ended since.
    """
    grown = {each: written[each] - before[each] for each in written if each in before and not each.stopped}
    least = 1 if before.keys() <= written.keys() else max(1, growth // 2)
    largest = max(grown, key=lambda each: grown[each], default=None)
    if growth > 0 and largest is not None and grown[largest] >= least:
        text = f"It wrote more than {whole}: delete files that are not needed any more."
        _end(largest, Stop("error", text, gentle=False), f"filled {whole}")


def _end(largest: Writer, stop: Stop, idle: str) -> None:
    if isinstance(largest, Run):
        largest.stop(stop)
    else:
        largest.lose(f"The context was ended, for it {idle} while it was idle")
