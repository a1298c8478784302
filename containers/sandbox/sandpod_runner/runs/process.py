"""A run in a process of its own, which ends with it: its command, and how it is ended."""

import asyncio
import os
import signal
from dataclasses import replace

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import Exit, Job
from sandpod_runner.output.stdio_pipes import open_pipes
from sandpod_runner.processes.languages import Languages
from sandpod_runner.processes.node_pool import Spare
from sandpod_runner.processes.program import LostError, Program
from sandpod_runner.protocol.messages import STOP_GRACE
from sandpod_runner.runs.request import MAX_TEXT, RunRequest
from sandpod_runner.runs.run import Ending, Run


class FreshProcess:
    """The process of one run, which is asked for at once. Raises Refusal: The code can't be put into a file."""

    def __init__(self, run: Run, cwd: str) -> None:
        self._run = run
        self._cwd = cwd
        self._loop = asyncio.get_running_loop()
        self._begin = self._loop.time()
        self._spare: Spare | None = None
        # All but a command that fits into an argument must lie in a file.
        name, language, code = run.request.run, run.request.language, run.request.code
        in_file = language != "shell" or len(code) >= MAX_TEXT
        self._file = run.toolbox.code.write(name, language, code) if in_file else ""
        self._fault = ""
        self._program: Program | None = None
        try:
            self._program = self._launch()
        except (LostError, OSError) as error:
            self._fault = f"The program could not be started: {error}."

    async def follow(self) -> Ending:
        """See the program through to its end, of which nothing is left alive."""
        try:
            return Ending(fault=self._fault) if self._program is None else await self._follow(self._program)
        finally:
            if self._file:
                self._run.toolbox.code.remove(self._file)

    async def _follow(self, program: Program) -> Ending:
        run = self._run
        try:
            run.pid = await run.started(program)
        except LostError as error:
            return Ending(fault=f"The program could not be started: {error}.")
        begin, used = self._begin, 0.0  # before it was launched: it may be running before that is known here
        if self._spare is not None:
            begin = self._loop.time()
            used = process_tree.processor_seconds(run.pid)  # by its start, which was nobody's run
            env = run.toolbox.base.env | run.request.env
            self._spare.begin(run.request.args, file=self._file, cwd=self._cwd, env=env)
        if not await run.over(program.ended):
            if run.stopping.result().gentle:
                program.signal(signal.SIGTERM)
                await asyncio.wait({program.ended}, timeout=STOP_GRACE)
            await program.kill()
        ended = program.ended.done()
        how, fault = (program.ended.result(), None) if ended else (Exit(None), "Its process could not be ended.")
        end = self._loop.time()
        await run.toolbox.launcher.sweep()
        for pipe in run.streams.release():
            pipe.close()
        return Ending(replace(how, cpu=max(0.0, how.cpu - used)), fault, times=(begin, end))

    def _launch(self) -> Program:
        run, box = self._run, self._run.toolbox
        if run.request.language == "javascript" and box.node is not None:
            self._spare = box.node.take()
            run.streams.connect(self._spare.pipes, self._done)
            return self._spare.program
        job = _build_job(run.request, box.languages, file=self._file, cwd=self._cwd, base=box.base)
        pipes = open_pipes(stdin=run.request.stdin, shows=run.request.language == "python")
        try:
            program = box.launcher.start(job, pipes.hand_over())
        except BaseException:
            pipes.close()
            raise
        run.streams.connect(pipes, self._done)
        return program

    def _done(self, how: Exit) -> None:
        if self._program is not None:
            self._run.toolbox.launcher.take_word(self._program, how)


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
