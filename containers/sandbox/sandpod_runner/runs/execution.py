"""The two ways to run code: in a process of its own, which ends with the run, and as a cell of a context.

A cell waits for its turn, and its end leaves the context's process alive where that is possible.
"""

import asyncio
import json
import os
import signal
import time
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import Exit, Job
from sandpod_runner.output.stdio_pipes import Pipes, open_pipes
from sandpod_runner.processes.environment import FILE, Languages
from sandpod_runner.processes.program import KILL_ROUNDS, LostError, Program
from sandpod_runner.protocol.messages import STOP_GRACE
from sandpod_runner.runs.context import Cell, Context
from sandpod_runner.runs.delivery import Delivery
from sandpod_runner.runs.request import MAX_TEXT, RunRequest, Stop
from sandpod_runner.runs.run import START_SECONDS, Run, Toolbox

_PATIENCE: Final = 3.0
"""Seconds from the second interrupt, which all that the cell has started gets too, to the end of a context that does
not listen: on a busy machine it takes a while to put a traceback together, and the state of all cells before is at
stake."""
_GONE: Final = 0.02  # seconds in which a killed process has ended
_TRIES: Final = 2
"""Processes that a cell is given to: one may end before the cell's code has begun, and nothing was done then."""
_LOST: Final = "The context's process has ended: its variables are lost, and its next cell begins anew."


class FreshProcess(Run):
    """A run in a process of its own, asked for at once. Raises Refusal: The code can't be put into a file."""

    def __init__(self, request: RunRequest, delivery: Delivery, toolbox: Toolbox, cwd: str) -> None:
        super().__init__(request, delivery, toolbox, cwd)
        self._begin = time.monotonic()
        # All but a command that fits into an argument must lie in a file.
        in_file = request.language != "shell" or len(request.code) >= MAX_TEXT
        self._file = toolbox.code.write(request.run, request.language, request.code) if in_file else ""
        try:
            self._program, self._pipes = self._launch()
        except (LostError, OSError) as error:
            self._program, self._pipes = Program([]), Pipes()
            self._program.fail(str(error))

    async def follow(self) -> None:
        """See the program through to its end, of which nothing is left alive."""
        try:
            await self._follow()
        except LostError as error:
            self.fault = f"The program could not be started: {error}."
        finally:
            if self._file:
                self.toolbox.code.remove(self._file)

    async def _follow(self) -> None:
        program = self._program
        self.pid = await self.started(program)
        begin, used = self._begin, 0.0  # from before its launch: it may run before that is reported
        if self._pipes.job is not None:
            begin = time.monotonic()
            used = process_tree.processor_seconds(self.pid)  # by its start, which is no part of the run
            env = self.toolbox.base.env | self.request.env
            job = {"file": self._file, "cwd": self.cwd, "args": self.request.args, "env": env}
            # Surrogates can't be UTF-8; Node gets what the bytes look like.
            self._pipes.job.feed(json.dumps(job).encode())
            self._pipes.job.end()
        how = await self.until_ended(program, partial(program.signal, signal.SIGTERM))
        spent = time.monotonic() - begin
        await self.toolbox.launcher.sweep()
        for pipe in self.streams.release():
            pipe.close()
        self.how, self.seconds = replace(how, cpu=max(0.0, how.cpu - used)), spent

    def _launch(self) -> tuple[Program, Pipes]:
        box, request = self.toolbox, self.request
        if request.language == "javascript" and box.node is not None:
            program, pipes = box.node.take()
        else:
            job = _build_job(request, box.languages, file=self._file, cwd=self.cwd, base=box.base)
            program, pipes = box.launcher.start_piped(job, stdin=request.stdin, shows=request.language == "python")
        self.streams.connect(pipes, partial(box.launcher.accept_report, program))
        return program, pipes


def _build_job(request: RunRequest, languages: Languages, *, file: str, cwd: str, base: Job) -> Job:
    """Return the job of a run of any language but JavaScript; `file` is empty if its code needs none."""
    job = replace(base, cwd=cwd, file=file, args=request.args, env=base.env | request.env)
    if request.language == "python":
        return replace(job, code=request.code)
    shell = languages.shell or ""
    if request.language != "shell":
        command = [word.replace(FILE, file) for word in languages.commands[request.language].command]
    elif file:
        command = [shell, file]
    else:
        command = [shell, "-c", os.fsdecode(request.code), os.path.basename(shell)]
    return replace(job, command=[*command, *request.args])


class ContextCell(Run):
    """A run as a cell of a context."""

    def __init__(self, request: RunRequest, delivery: Delivery, toolbox: Toolbox, cwd: str, context: Context) -> None:
        super().__init__(request, delivery, toolbox, cwd, context)
        self._context = context
        self._pipes = Pipes()
        try:
            self._pipes = open_pipes(stdin=request.stdin, shows=True)
        except OSError as error:
            self.fault = f"The cell could not be started: {error}."
        self.streams.connect(self._pipes)
        context.waiting += 1

    async def follow(self) -> None:
        """Wait for the cell's turn, and see it through."""
        context = self._context
        locking: asyncio.Task[Any] = asyncio.create_task(context.lock.acquire())
        try:
            await self.first(None, locking)
        finally:
            context.waiting -= 1
        if not locking.done():
            locking.cancel()
            return
        try:
            if not self.stopping.done() and not self.fault:
                await self._in_turn()
        finally:
            context.lock.release()

    async def _in_turn(self) -> None:
        context, box, request = self._context, self.toolbox, self.request
        self.mark = box.storage.artifacts.begin(request.run)  # what other cells did meanwhile is theirs
        cwd = self.cwd if request.cwd != "." else ""
        job = replace(box.base, env=request.env, cwd=cwd, code=request.code, args=request.args)
        for _ in range(_TRIES):
            begin = time.monotonic()
            try:
                cell = context.send(job, self._pipes.theirs, cwd=self.cwd)
                note, context.lost = context.lost, None
                self.pid = await self.started(cell.process.program)
            except LostError as error:
                await context.end()
                self.fault, self.context_state = f"The context could not be started: {error}.", "lost"
                return
            used = process_tree.processor_seconds(self.pid)
            how, lost = await self._until_over(cell)
            if not lost or cell.begun.done() or self.stopping.done():
                break
        state, spent = "lost" if note else "kept", time.monotonic() - begin
        self._pipes.close_theirs()
        await box.launcher.sweep()
        cell.process.keep_reading(self.streams.release())
        if lost:
            context.lost = None
            how = replace(how, cpu=max(0.0, how.cpu - used))
            state, note = "lost", _LOST
        elif self.stopping.done():
            await _end_started(cell)
            note = note or "The context keeps its variables."
        self.how, self.note, self.context_state, self.seconds = how, note, state, spent

    async def _until_over(self, cell: Cell) -> tuple[Exit, bool]:
        ended = cell.ended
        await self.first(START_SECONDS, cell.begun, ended)
        if not await self.over(ended):
            await _interrupt(cell, self.stopping.result())
            await cell.process.program.kill(ended)
        return ended.result() if ended.done() else (Exit(None), True)


async def _interrupt(cell: Cell, stop: Stop) -> None:
    """Interrupt a cell, as Ctrl-C would, and see whether it ends."""
    # More output than is wanted is no reason to lose the variables.
    if stop.gentle or stop.outcome == "output_limit":
        cell.process.program.signal(signal.SIGINT, tree=False)
        await asyncio.wait({cell.ended}, timeout=STOP_GRACE if stop.gentle else _PATIENCE)
    if stop.gentle and not cell.ended.done():
        cell.process.program.signal(signal.SIGINT, tree=False)
        process_tree.send(cell.started(), signal.SIGINT)  # and not to what earlier cells left
        await asyncio.wait({cell.ended}, timeout=_PATIENCE)


async def _end_started(cell: Cell) -> None:
    """End what an interrupted cell has started; what earlier ones left goes on."""
    for attempt in range(KILL_ROUNDS):
        if not (pids := cell.started()):
            return
        process_tree.end_trees(pids, freeze=attempt > 0)
        await asyncio.sleep(_GONE)
