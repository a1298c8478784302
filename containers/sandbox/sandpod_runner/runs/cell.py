"""A run in a context: it waits for its turn, and its end leaves the context's process alive where that is possible."""

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any, Final

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import Exit
from sandpod_runner.output.stdio_pipes import make_pipes
from sandpod_runner.processes.program import LostError, Program
from sandpod_runner.protocol.messages import STOP_GRACE
from sandpod_runner.runs.context import Cell, Context
from sandpod_runner.runs.delivery import Delivery
from sandpod_runner.runs.request import RunRequest
from sandpod_runner.runs.run import KILL_ROUNDS, KILL_WAIT, START_SECONDS, Run, Toolbox

_SECOND: Final = STOP_GRACE
"""Seconds from the first interrupt to one for all that the cell has started too."""
_PATIENCE: Final = 3.0
"""Seconds from that to the end of a context that does not listen: on a busy machine it takes a while to put a traceback
together, and the state of all cells before is at stake."""
_GONE: Final = 0.02
"""Seconds in which a killed process has ended."""
_TRIES: Final = 2
"""Processes that a cell is given to: one may end before the cell's code has begun, and nothing was done then."""
_LOST: Final = "The context's process has ended: its variables are lost, and its next cell begins anew."


class CellRun(Run):
    """One cell."""

    def __init__(self, request: RunRequest, cwd: str, delivery: Delivery, toolbox: Toolbox, context: Context) -> None:
        self._context = context
        self._theirs: list[int] = []
        super().__init__(request, cwd, delivery, toolbox)
        context.waiting += 1

    def runs_in(self, context: Context) -> bool:
        """Tell whether it is this context's cell at the moment."""
        return self._context is context and self.pid is not None

    def _launch(self) -> Program | None:
        pipes, self._theirs = make_pipes(stdin=self.request.stdin, shows=True)
        self._connect(pipes)
        return None  # its turn comes later

    async def _work(self) -> Exit:
        context = self._context
        turn: asyncio.Task[Any] = self._loop.create_task(context.turn.acquire())
        waits: set[asyncio.Future[Any]] = {turn, self._stop}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            context.waiting -= 1
        if not turn.done():
            turn.cancel()
            return Exit(None)
        try:
            return Exit(None) if self._stop.done() or not self._theirs else await self._in_turn()
        finally:
            context.turn.release()

    async def _in_turn(self) -> Exit:
        context, request = self._context, self.request
        self._mark = self._toolbox.artifacts.begin(request.run)  # what other cells did meanwhile is theirs
        cwd = self._cwd if request.cwd != "." else ""
        job = replace(self._toolbox.base, env=request.env, cwd=cwd, code=request.code, args=request.args)
        how, lost, used = Exit(None), True, 0.0
        for _ in range(_TRIES):
            begin = self._loop.time()
            before, since = self._context.left_behind(), process_tree.now()
            try:
                program, cell = context.send(job, self._theirs, cwd=self._cwd)
                self._context_state, self._note, context.lost = ("lost" if context.lost else "kept"), context.lost, None
                self.pid = await self._started(program)
            except LostError as error:
                await context.end()
                self._fault, self._context_state = f"The context could not be started: {error}.", "lost"
                return Exit(None)
            used = process_tree.processor_seconds(self.pid)
            how, lost = await self._until_over(cell, self.pid, begin)
            if not lost or cell.begun.done() or self._stop.done():
                break
        self._let_go()
        await self._toolbox.launcher.sweep()
        self._read_rest()
        if lost:
            self._context_state, self._note, context.lost = "lost", _LOST, None
            return replace(how, cpu=max(0.0, how.cpu - used))
        if self._stop.done() and self._context_state == "kept":
            await self._end_started(before, since)
            self._note = "The context keeps its variables."
        return how

    async def _until_over(self, cell: Cell, pid: int, begin: float) -> tuple[Exit, bool]:
        over: set[asyncio.Future[Any]] = {cell.ended}
        waits: set[asyncio.Future[Any]] = {self._stop, *over}
        await asyncio.wait({cell.begun, *waits}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(waits, timeout=self.request.timeout, return_when=asyncio.FIRST_COMPLETED)
        if not cell.ended.done():
            self._stop_late()
            # More output than is wanted is no reason to lose the variables.
            gentle = self._stop.result().gentle
            if gentle or self._stop.result().outcome == "output_limit":
                process_tree.send([pid], signal.SIGINT)
                await asyncio.wait(over, timeout=_SECOND if gentle else _PATIENCE)
            if gentle and not cell.ended.done():
                all_of_it = [pid] if self._context.relays else process_tree.trees([pid], process_tree.parents())
                process_tree.send(all_of_it, signal.SIGINT)
                await asyncio.wait(over, timeout=_PATIENCE)
        for attempt in range(KILL_ROUNDS):
            if cell.ended.done():
                break
            process_tree.end_trees([pid], freeze=attempt > 0)
            await asyncio.wait(over, timeout=KILL_WAIT)
        self._times = (begin, self._loop.time())
        return cell.ended.result() if cell.ended.done() else (Exit(None), True)

    async def _end_started(self, before: set[int], since: int) -> None:
        """End what the interrupted cell has started; what earlier ones left goes on."""
        for attempt in range(KILL_ROUNDS):
            started = self._context.new_processes(before, since)
            if not started:
                return
            process_tree.end_trees(started, freeze=attempt > 0)
            await asyncio.sleep(_GONE)

    def _read_rest(self) -> None:
        if self._output is not None:
            self._context.keep_reading(self._output.release())
        if self._shown is not None:
            self._shown.drain()

    def _clean_up(self) -> None:
        self._let_go()
        super()._clean_up()

    def _let_go(self) -> None:
        for fd in self._theirs:
            os.close(fd)
        self._theirs = []
