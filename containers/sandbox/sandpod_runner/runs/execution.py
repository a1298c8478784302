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
from sandpod_runner.processes.languages import Languages
from sandpod_runner.processes.program import KILL_ROUNDS, LostError, Program
from sandpod_runner.protocol.messages import STOP_GRACE
from sandpod_runner.runs.context import Cell, Context
from sandpod_runner.runs.outcome import Stop
from sandpod_runner.runs.request import MAX_TEXT, RunRequest
from sandpod_runner.runs.run import START_SECONDS, Ending, Run

_PATIENCE: Final = 3.0
"""Seconds from the second interrupt, which all that the cell has started gets too, to the end of a context that does
not listen: on a busy machine it takes a while to put a traceback together, and the state of all cells before is at
stake."""
_GONE: Final = 0.02  # seconds in which a killed process has ended
_TRIES: Final = 2
"""Processes that a cell is given to: one may end before the cell's code has begun, and nothing was done then."""
_LOST: Final = "The context's process has ended: its variables are lost, and its next cell begins anew."


class FreshProcess:
    """The process of one run, which is asked for at once. Raises Refusal: The code can't be put into a file."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._begin = time.monotonic()
        # All but a command that fits into an argument must lie in a file.
        name, language, code = run.request.run, run.request.language, run.request.code
        in_file = language != "shell" or len(code) >= MAX_TEXT
        self._file = run.toolbox.code.write(name, language, code) if in_file else ""
        try:
            self._program, self._pipes = self._launch()
        except (LostError, OSError) as error:
            self._program, self._pipes = Program(), Pipes()
            self._program.fail(str(error))

    async def follow(self) -> Ending:
        """See the program through to its end, of which nothing is left alive."""
        try:
            return await self._follow()
        except LostError as error:
            return Ending(fault=f"The program could not be started: {error}.")
        finally:
            if self._file:
                self._run.toolbox.code.remove(self._file)

    async def _follow(self) -> Ending:
        run, program = self._run, self._program
        run.pid = await run.started(program)
        begin, used = self._begin, 0.0  # from before its launch: it may run before that is reported
        if self._pipes.job is not None:
            begin = time.monotonic()
            used = process_tree.processor_seconds(run.pid)  # by its start, which is no part of the run
            env = run.toolbox.base.env | run.request.env
            job = {"file": self._file, "cwd": run.cwd, "args": run.request.args, "env": env}
            # Surrogates can't be UTF-8; Node gets what the bytes look like.
            self._pipes.job.feed(json.dumps(job).encode())
            self._pipes.job.end()
        if not await run.over(program.ended):
            if run.stopping.result().gentle:
                program.signal(signal.SIGTERM)
                await asyncio.wait({program.ended}, timeout=STOP_GRACE)
            await program.kill()
        ended = program.ended.done()
        how, fault = (program.ended.result(), None) if ended else (Exit(None), "Its process could not be ended.")
        spent = time.monotonic() - begin
        await run.toolbox.launcher.sweep()
        for pipe in run.streams.release():
            pipe.close()
        return Ending(replace(how, cpu=max(0.0, how.cpu - used)), fault, seconds=spent)

    def _launch(self) -> tuple[Program, Pipes]:
        run, box = self._run, self._run.toolbox
        if run.request.language == "javascript" and box.node is not None:
            program, pipes = box.node.take()
        else:
            job = _build_job(run.request, box.languages, file=self._file, cwd=run.cwd, base=box.base)
            shows = run.request.language == "python"
            program, pipes = box.launcher.start_piped(job, stdin=run.request.stdin, shows=shows)
        run.streams.connect(pipes, partial(box.launcher.accept_report, program))
        return program, pipes


def _build_job(request: RunRequest, languages: Languages, *, file: str, cwd: str, base: Job) -> Job:
    """Return the job of a run of any language but JavaScript; `file` is empty if its code needs none."""
    job = replace(base, cwd=cwd, file=file, args=request.args, env=base.env | request.env)
    if request.language == "python":
        return replace(job, code=request.code)
    shell = languages.shell or ""
    if request.language != "shell":
        command = languages.commands[request.language].command_for(file)
    elif file:
        command = [shell, file]
    else:
        command = [shell, "-c", os.fsdecode(request.code), os.path.basename(shell)]
    return replace(job, command=[*command, *request.args])


class ContextCell:
    """The cell of one run."""

    def __init__(self, run: Run, context: Context) -> None:
        self._run = run
        self._context = context
        self._fault: str | None = None
        self._pipes = Pipes()
        try:
            self._pipes = open_pipes(stdin=run.request.stdin, shows=True)
        except OSError as error:
            self._fault = f"The cell could not be started: {error}."
        run.streams.connect(self._pipes)
        context.waiting += 1

    async def follow(self) -> Ending:
        """Wait for the cell's turn, and see it through."""
        context, stopping = self._context, self._run.stopping
        turn: asyncio.Task[Any] = asyncio.create_task(context.turn.acquire())
        try:
            await self._run.first(None, turn)
        finally:
            context.waiting -= 1
        if not turn.done():
            turn.cancel()
            return Ending()
        try:
            return Ending(fault=self._fault) if stopping.done() or self._fault else await self._in_turn()
        finally:
            context.turn.release()

    async def _in_turn(self) -> Ending:
        context, run = self._context, self._run
        run.mark = run.toolbox.artifacts.begin(run.request.run)  # what other cells did meanwhile is theirs
        for _ in range(_TRIES):
            begin = time.monotonic()
            try:
                cell = self._send()
                note, context.lost = context.lost, None
                run.pid = await run.started(cell.process.program)
            except LostError as error:
                await context.end()
                return Ending(fault=f"The context could not be started: {error}.", context_state="lost")
            used = process_tree.processor_seconds(run.pid)
            how, lost = await self._until_over(cell)
            if not lost or cell.begun.done() or run.stopping.done():
                break
        state, spent = "lost" if note else "kept", time.monotonic() - begin
        ending = Ending(how, note=note, context_state=state, seconds=spent)
        self._pipes.close_theirs()
        await run.toolbox.launcher.sweep()
        cell.process.keep_reading(run.streams.release())
        if lost:
            context.lost = None
            ending.how = replace(how, cpu=max(0.0, how.cpu - used))
            ending.context_state, ending.note = "lost", _LOST
        elif run.stopping.done():
            await _end_started(cell)
            ending.note = note or "The context keeps its variables."
        return ending

    def _send(self) -> Cell:
        run, request = self._run, self._run.request
        cwd = run.cwd if request.cwd != "." else ""
        job = replace(run.toolbox.base, env=request.env, cwd=cwd, code=request.code, args=request.args)
        return self._context.send(job, self._pipes.theirs, cwd=run.cwd)

    async def _until_over(self, cell: Cell) -> tuple[Exit, bool]:
        run, ended = self._run, cell.ended
        await run.first(START_SECONDS, cell.begun, ended)
        if not await run.over(ended):
            await _interrupt(cell, run.stopping.result())
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
