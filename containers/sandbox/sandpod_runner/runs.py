"""All runs of the sandbox: which there are, whose they are, and which must end.

Called by `server.py` with what streams ask for. It decides which run ends when memory runs out; how one is started
and ended is `run.py`'s work.
"""

import asyncio
import logging
from typing import Any, Final

from sandpod_runner import processes
from sandpod_runner.ends import Stop, out_of_memory
from sandpod_runner.errors import Refusal, refusal_of
from sandpod_runner.paths import Workspace
from sandpod_runner.protocol import MAX_RUNS, ORPHAN_GRACE
from sandpod_runner.requests import parse_run
from sandpod_runner.run import Owner, Run, Toolbox

logger = logging.getLogger(__name__)

_CANCELLED: Final = Stop("cancelled", "It was cancelled.")
_ORPHANED: Final = Stop("cancelled", "The stream that it was started on has gone.")
_CLOSING: Final = Stop("cancelled", "The sandbox is being closed.")


class Runs:
    """The live runs, by name."""

    def __init__(self, toolbox: Toolbox, workspace: Workspace, *, orphan_grace: float = ORPHAN_GRACE) -> None:
        self._toolbox = toolbox
        self._workspace = workspace
        self._orphan_grace = orphan_grace
        self._loop = asyncio.get_running_loop()
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._look: asyncio.TimerHandle | None = None

    @property
    def names(self) -> list[str]:
        """The names of the live runs."""
        return list(self._runs)

    def start(self, header: dict[str, Any], code: bytes, owner: Owner) -> None:
        """Start a run; what becomes of it is sent to its owner.

        Raises:
            Refusal: It can't be, and nothing was started.
        """
        request = parse_run(header, code)
        if request.run in self._runs:
            raise Refusal("invalid_argument", "There is a live run of that name.")
        if len(self._runs) >= MAX_RUNS:
            raise Refusal("session_busy", f"The sandbox runs {MAX_RUNS} programs already, which is the most.")
        if request.language == "javascript" and self._toolbox.node is None:
            raise Refusal("unsupported_language", "This sandbox has no Node.js.")
        if request.language == "shell" and self._toolbox.tools.shell is None:
            raise Refusal("unsupported_language", "This sandbox has no shell.")
        try:
            cwd = self._workspace.folder_path(request.cwd)
        except OSError as error:
            raise refusal_of(error) from error
        run = Run(request, cwd, owner, self._toolbox)
        if not self._runs:
            self._watch()
        self._runs[request.run] = run
        owner.send({"t": "started", "run": request.run})
        task = self._loop.create_task(self._see_through(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def find(self, name: str) -> Run:
        """Return a live run.

        Raises:
            Refusal: not_found.
        """
        run = self._runs.get(name)
        if run is None:
            raise Refusal("not_found", "There is no live run of that name.")
        return run

    def cancel(self, name: str) -> None:
        """End a run.

        Raises:
            Refusal: not_found.
        """
        self.find(name).stop(_CANCELLED)

    def set_flow(self, owner: Owner, *, flowing: bool) -> None:
        """Let the output of a stream's runs come, or leave it with the programs."""
        for run in self._runs.values():
            if run.owner is owner:
                run.set_flow(flowing=flowing)

    def orphan(self, owner: Owner) -> None:
        """Note that a stream has gone: its runs end soon, but for the detached ones."""
        mine = [run for run in self._runs.values() if run.owner is owner]
        for run in mine:
            run.set_flow(flowing=True)  # to nobody: a program must not hang on a reader that has gone
            if not run.request.detached:
                self._loop.call_later(self._orphan_grace, run.stop, _ORPHANED)

    async def close(self) -> None:
        """End all runs and wait until they have."""
        for run in self._runs.values():
            run.stop(_CLOSING)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _see_through(self, run: Run) -> None:
        try:
            await run.live()
        finally:
            # Before the owner can ask for another run of that name: nothing is awaited between `end` and this.
            del self._runs[run.request.run]
            if not self._runs and self._look is not None:
                self._look.cancel()
                self._look = None

    def _watch(self) -> None:
        memory = self._toolbox.memory
        if memory is not None and self._look is None:
            memory.rest()
            self._look_at_memory()

    def _look_at_memory(self) -> None:
        memory = self._toolbox.memory
        if memory is None:
            return
        begin = self._loop.time()
        over, again = memory.look()
        if over:
            self._end_largest(memory.limit)
        # Adding processes up takes a while where there are many: looking must not become all that is done.
        cost = self._loop.time() - begin
        self._look = self._loop.call_later(max(again, 4 * cost), self._look_at_memory)

    def _end_largest(self, limit: int) -> None:
        if any(run.stopped == "out_of_memory" for run in self._runs.values()):
            return  # what it gives back shows at the next look
        table = processes.parents()
        sizes = {run: processes.resident(processes.trees([run.pid], table)) for run in self._runs.values() if run.pid}
        if sizes:
            max(sizes, key=lambda run: sizes[run]).stop(out_of_memory(limit))
