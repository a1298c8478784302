"""A run in a context: it waits for its turn, and its end leaves the context's process alive where that is possible."""

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import Exit
from sandpod_runner.output.stdio_pipes import make_pipes
from sandpod_runner.processes.program import KILL_ROUNDS, LostError, Program
from sandpod_runner.protocol.messages import STOP_GRACE
from sandpod_runner.runs.context import Context
from sandpod_runner.runs.context_process import Cell
from sandpod_runner.runs.run import START_SECONDS, Ending, Run

_SECOND: Final = STOP_GRACE  # seconds from the first interrupt to one for all that the cell has started too
_PATIENCE: Final = 3.0
"""Seconds from that to the end of a context that does not listen: on a busy machine it takes a while to put a traceback
together, and the state of all cells before is at stake."""
_GONE: Final = 0.02  # seconds in which a killed process has ended
_TRIES: Final = 2
"""Processes that a cell is given to: one may end before the cell's code has begun, and nothing was done then."""
_LOST: Final = "The context's process has ended: its variables are lost, and its next cell begins anew."


class ContextCell:
    """The cell of one run."""

    def __init__(self, run: Run, cwd: str, context: Context) -> None:
        self.pid: int | None = None
        self._run = run
        self._cwd = cwd
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._fault: str | None = None
        self._theirs: list[int] = []
        try:
            pipes, self._theirs = make_pipes(stdin=run.request.stdin, shows=True)
        except OSError as error:
            self._fault = f"The cell could not be started: {error}."
        else:
            run.streams.connect(pipes)
        context.waiting += 1

    def runs_in(self, context: Context) -> bool:
        """Return whether it is this context's cell at the moment."""
        return self._context is context and self.pid is not None

    async def follow(self) -> Ending:
        """Wait for the cell's turn, and see it through."""
        context, stopping = self._context, self._run.stopping
        turn: asyncio.Task[Any] = self._loop.create_task(context.turn.acquire())
        try:
            await asyncio.wait({turn, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            context.waiting -= 1
        if not turn.done():
            turn.cancel()
            return Ending()
        try:
            return Ending(fault=self._fault) if stopping.done() or self._fault else await self._in_turn()
        finally:
            context.turn.release()

    def close(self) -> None:
        """Let go of the descriptors that the context's process has got."""
        for fd in self._theirs:
            os.close(fd)
        self._theirs = []

    async def _in_turn(self) -> Ending:
        context, run = self._context, self._run
        run.mark = run.toolbox.artifacts.begin(run.request.run)  # what other cells did meanwhile is theirs
        for _ in range(_TRIES):
            begin = self._loop.time()
            before = set[int]() if context.process is None else context.process.left_behind()
            since = process_tree.now()
            try:
                program, cell = self._send()
                note, context.lost = context.lost, None
                self.pid = await run.started(program)
            except LostError as error:
                await context.end()
                return Ending(fault=f"The context could not be started: {error}.", context_state="lost")
            used = process_tree.processor_seconds(self.pid)
            started = partial(self._started, before, since)
            how, lost = await self._until_over(program, cell, started)
            if not lost or cell.begun.done() or run.stopping.done():
                break
        ending = Ending(how, note=note, context_state="lost" if note else "kept", times=(begin, self._loop.time()))
        self.close()
        await run.toolbox.launcher.sweep()
        context.keep_reading(run.streams.release())
        if lost:
            context.lost = None
            ending.how = replace(how, cpu=max(0.0, how.cpu - used))
            ending.context_state, ending.note = "lost", _LOST
        elif run.stopping.done():
            await self._end_started(started)
            ending.note = note or "The context keeps its variables."
        return ending

    def _send(self) -> tuple[Program, Cell]:
        request = self._run.request
        cwd = self._cwd if request.cwd != "." else ""
        job = replace(self._run.toolbox.base, env=request.env, cwd=cwd, code=request.code, args=request.args)
        return self._context.send(job, self._theirs, cwd=self._cwd)

    async def _until_over(self, program: Program, cell: Cell, started: Callable[[], set[int]]) -> tuple[Exit, bool]:
        run, ended = self._run, cell.ended
        begins: set[asyncio.Future[Any]] = {cell.begun, ended, run.stopping}
        await asyncio.wait(begins, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not await run.over(ended):
            await self._interrupt(program, ended, started)
            await program.kill(ended)
        return ended.result() if ended.done() else (Exit(None), True)

    async def _interrupt(self, program: Program, ended: "asyncio.Future[Any]", started: Callable[[], set[int]]) -> None:
        """Interrupt the cell, as Ctrl-C would, and see whether it ends."""
        stop = self._run.stopping.result()
        # More output than is wanted is no reason to lose the variables.
        if stop.gentle or stop.outcome == "output_limit":
            program.signal(signal.SIGINT, tree=False)
            await asyncio.wait({ended}, timeout=_SECOND if stop.gentle else _PATIENCE)
        if stop.gentle and not ended.done():
            program.signal(signal.SIGINT, tree=False)
            process_tree.send(started(), signal.SIGINT)  # and not to what earlier cells left
            await asyncio.wait({ended}, timeout=_PATIENCE)

    async def _end_started(self, started: Callable[[], set[int]]) -> None:
        """End what the interrupted cell has started; what earlier ones left goes on."""
        for attempt in range(KILL_ROUNDS):
            if not (pids := started()):
                return
            process_tree.end_trees(pids, freeze=attempt > 0)
            await asyncio.sleep(_GONE)

    def _started(self, before: set[int], since: int) -> set[int]:
        process = self._context.process
        return set() if process is None else process.new_processes(before, since)
