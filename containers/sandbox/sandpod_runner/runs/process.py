"""A run in a process of its own, which ends with it."""

import asyncio
import os
import signal
from dataclasses import replace

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import Exit
from sandpod_runner.output.stdio_pipes import make_pipes
from sandpod_runner.processes.node_pool import Spare
from sandpod_runner.processes.program import LostError, Program
from sandpod_runner.protocol.messages import STOP_GRACE
from sandpod_runner.runs.programs import build_job, needs_file
from sandpod_runner.runs.run import Ending, Run


class FreshProcess:
    """The process of one run, which is asked for at once. Raises Refusal: The code can't be put into a file."""

    def __init__(self, run: Run, cwd: str) -> None:
        self.pid: int | None = None
        self._run = run
        self._cwd = cwd
        self._loop = asyncio.get_running_loop()
        self._begin = self._loop.time()
        self._spare: Spare | None = None
        self._file = run.toolbox.code.write(run.request) if needs_file(run.request) else ""
        self._fault = ""
        self._program: Program | None = None
        try:
            self._program = self._launch()
        except (LostError, OSError) as error:
            self._fault = f"The program could not be started: {error}."

    async def follow(self) -> Ending:
        """See the program through."""
        program, run = self._program, self._run
        if program is None:
            return Ending(fault=self._fault)
        try:
            self.pid = await run.started(program)
        except LostError as error:
            return Ending(fault=f"The program could not be started: {error}.")
        begin, used = self._begin, 0.0  # before it was launched: it may be running before that is known here
        if self._spare is not None:
            begin = self._loop.time()
            used = process_tree.processor_seconds(self.pid)  # by its start, which was nobody's run
            env = run.toolbox.base.env | run.request.env
            self._spare.begin(run.request.args, file=self._file, cwd=self._cwd, env=env)
        how, fault = await self._until_end(program), None
        if how is None:
            how, fault = Exit(None), "Its process could not be ended."
        end = self._loop.time()
        await run.toolbox.launcher.sweep()
        for pipe in run.streams.release():
            pipe.close()
        return Ending(replace(how, cpu=max(0.0, how.cpu - used)), fault, times=(begin, end))

    def close(self) -> None:
        """Let go of what it was run with."""
        if self._spare is not None:
            self._spare.job.close()
        if self._file:
            self._run.toolbox.code.remove(self._run.request)

    def _launch(self) -> Program:
        run, box = self._run, self._run.toolbox
        if run.request.language == "javascript" and box.node is not None:
            self._spare = box.node.take()
            run.streams.connect(self._spare.pipes, self._done)
            return self._spare.program
        job = build_job(run.request, box.languages, file=self._file, cwd=self._cwd, base=box.base)
        pipes, theirs = make_pipes(stdin=run.request.stdin, shows=run.request.language == "python")
        try:
            program = box.launcher.start(job, theirs)
        except BaseException:
            pipes.close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        run.streams.connect(pipes, self._done)
        return program

    async def _until_end(self, program: Program) -> Exit | None:
        run = self._run
        if not await run.over(program.ended):
            if run.stopping.result().gentle:
                program.signal(signal.SIGTERM)
                await asyncio.wait({program.ended}, timeout=STOP_GRACE)
            await program.kill()
        return program.ended.result() if program.ended.done() else None

    def _done(self, how: Exit) -> None:
        if self._program is not None:
            self._run.toolbox.launcher.take_word(self._program, how)
