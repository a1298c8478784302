"""One run from its acceptance to its `end`: started, watched, stopped where it must be, and cleaned up after.

A run ends exactly once, after all of its output, with nothing of it left alive.
"""

import asyncio
import logging
import os
import signal
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sandpod_runner.files.artifacts import Artifacts, Found, Mark
from sandpod_runner.files.disk import DiskWatch
from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import Exit, Job
from sandpod_runner.limits.memory import Watch
from sandpod_runner.output.display_reader import Shown
from sandpod_runner.output.stdio_pipes import Input, Output, Pipes, make_pipes
from sandpod_runner.processes.languages import Languages
from sandpod_runner.processes.launcher import Launcher
from sandpod_runner.processes.node_pool import NodePool, Spare
from sandpod_runner.processes.program import LostError, Program
from sandpod_runner.protocol.messages import STOP_GRACE
from sandpod_runner.runs.code_folder import CodeFolder
from sandpod_runner.runs.commands import build_job, needs_file
from sandpod_runner.runs.context import Contexts
from sandpod_runner.runs.delivery import Delivery
from sandpod_runner.runs.outcome import Stop, describe_end, killed, killed_for_memory, out_of_memory, ran_out
from sandpod_runner.runs.request import RunRequest

logger = logging.getLogger(__name__)

START_SECONDS: Final = 30.0
"""Longest wait for a process: the zygote may just be starting again."""
KILL_ROUNDS: Final = 10
KILL_WAIT: Final = 0.5


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What runs are made with."""

    launcher: Launcher
    languages: Languages
    node: NodePool | None
    contexts: Contexts
    code: CodeFolder
    base: Job = field(repr=False)
    memory: Watch | None
    disk: DiskWatch | None
    artifacts: Artifacts


class Run:
    """A run that was accepted. Its process is asked for at once; `live` does the rest.

    Raises:
        Refusal: The code can't be put into a file.
    """

    def __init__(self, request: RunRequest, cwd: str, delivery: Delivery, toolbox: Toolbox) -> None:
        self.request = request
        self.delivery = delivery
        delivery.hold = self.flow
        self.pid: int | None = None
        self._cwd = cwd
        self._toolbox = toolbox
        self._loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[Stop] = self._loop.create_future()
        self._spare: Spare | None = None
        self._output: Output | None = None
        self._input: Input | None = None
        self._shown: Shown | None = None
        self._kills = toolbox.memory.kills() if toolbox.memory else 0
        self._file = toolbox.code.write(request) if needs_file(request) else ""
        self._program: Program | None = None
        self._fault: str | None = None
        self._note: str | None = None
        self._context_state: str | None = None
        self._mark: Mark = toolbox.artifacts.begin(request.run)
        self._found = Found()
        self._times = (self._loop.time(), self._loop.time())
        try:
            self._program = self._launch()
        except (LostError, OSError) as error:
            self._fault = f"The program could not be started: {error}."

    async def live(self) -> None:
        """See it through, and send its `end`."""
        how = Exit(None)
        try:
            how = await self._work()
        except Exception:
            logger.exception("a run failed inside the runner")
            self._fault = "The runner failed: this is a fault of its own."
        finally:
            self._clean_up()
        memory = self._toolbox.memory
        by_kernel = memory is not None and memory.kills() > self._kills
        words = self._output.last_words if self._output is not None else b""
        if memory is not None and by_kernel and not killed(how):
            self._note = " ".join(filter(None, (self._note, killed_for_memory(memory.limit))))
        if (by_kernel and killed(how)) or ran_out(self.request.language, how, words):
            states = [context.state for context in self._toolbox.contexts.pids()]
            self.stop(out_of_memory(memory.limit if memory is not None else None, states))
        self._found = await self._toolbox.artifacts.end(self.request.run, self._mark)
        self._send_end(how)

    @property
    def stopped(self) -> str | None:
        """What it is being ended for, if it is."""
        return self._stop.result().outcome if self._stop.done() else None

    def stop(self, why: Stop) -> None:
        """End it; the first reason counts."""
        if not self._stop.done():
            self._stop.set_result(why)

    def feed(self, data: bytes, offset: int | None, *, last: bool) -> None:
        """Take input for the program.

        Args:
            data: A piece of it.
            offset: Bytes of input before it, of which some may have come already; or None: it comes next.
            last: Nothing comes after it.
        """
        if self._input is None or not self.request.stdin:
            return
        if offset is not None:
            if offset > self._input.taken:
                self.stop(Stop("error", "A part of the program's input was lost on the way: it was ended."))
                return
            data = data[self._input.taken - offset :]
        if not self._input.feed(data):
            self.stop(Stop("error", "More input came than the program read: it was ended."))
        if last:
            self._input.end()

    def flow(self) -> None:
        """Let output come, or leave it in the pipes, as its owner can take it."""
        self.delivery.pump()
        for source in (self._output, self._shown):
            if source is not None:
                if self.delivery.held:
                    source.pause()
                else:
                    source.resume()

    def _launch(self) -> Program | None:
        if self.request.language == "javascript" and self._toolbox.node is not None:
            self._spare = self._toolbox.node.take()
            self._connect(self._spare.pipes)
            return self._spare.program
        box = self._toolbox
        job = build_job(self.request, box.languages, file=self._file, cwd=self._cwd, base=box.base)
        pipes, theirs = make_pipes(stdin=self.request.stdin, shows=self.request.language == "python")
        try:
            program = box.launcher.start(job, theirs)
        except BaseException:
            pipes.close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self._connect(pipes)
        return program

    async def _work(self) -> Exit:
        return await self._follow(self._program) if self._program is not None else Exit(None)

    def _connect(self, pipes: Pipes) -> None:
        self._output = Output(pipes.outputs, self.request.output_limit, self.delivery.put, self._too_much)
        if pipes.shown is not None:
            cell = self.request.context is not None
            self._shown = Shown(
                pipes.shown,
                self._send_display,
                result=self._send_result if cell else None,
                done=None if cell else self._done,
            )
        self.flow()
        self._input = pipes.stdin
        if self._input is not None and not self.request.stdin:
            self._input.end()

    async def _follow(self, program: Program) -> Exit:
        try:
            self.pid = await self._started(program)
        except LostError as error:
            self._fault = f"The program could not be started: {error}."
            return Exit(None)
        begin, used = self._times[0], 0.0  # before it was launched: it may be running before that is told here
        if self._spare is not None:
            begin = self._loop.time()
            used = process_tree.processor_seconds(self.pid)  # by its start, which was nobody's run
            env = self._toolbox.base.env | self.request.env
            self._spare.begin(self.request.args, file=self._file, cwd=self._cwd, env=env)
        how = await self._until_end(program, self.pid)
        self._times = (begin, self._loop.time())
        await self._toolbox.launcher.sweep()
        if self._output is not None:
            self._output.drain()
        if self._shown is not None:
            self._shown.drain()
        return replace(how, cpu=max(0.0, how.cpu - used))

    async def _started(self, program: Program) -> int:
        """Return the program's process.

        Raises:
            LostError: There is none, or the run was stopped before there was one.
        """
        seconds = min(START_SECONDS, self.request.timeout)
        waits: set[asyncio.Future[Any]] = {program.pid, self._stop}
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if program.pid.done():
            return program.pid.result()
        program.abandon()
        if not self._stop.done() and seconds < START_SECONDS:
            self._stop_late()
        if self._stop.done():
            raise LostError("it was stopped before")
        self._toolbox.launcher.renew()
        raise LostError("it took too long")

    def _stop_late(self) -> None:
        self.stop(Stop("timeout", f"It was stopped after {self.request.timeout:g} seconds."))

    async def _until_end(self, program: Program, pid: int) -> Exit:
        waits: set[asyncio.Future[Any]] = {program.ended, self._stop}
        await asyncio.wait(waits, timeout=self.request.timeout, return_when=asyncio.FIRST_COMPLETED)
        if program.ended.done():
            return program.ended.result()
        self._stop_late()
        if self._stop.result().gentle:
            process_tree.send(process_tree.trees([pid], process_tree.parents()), signal.SIGTERM)
            await asyncio.wait({program.ended}, timeout=STOP_GRACE)
        for attempt in range(KILL_ROUNDS):
            if program.ended.done():
                return program.ended.result()
            process_tree.end_trees([pid], freeze=attempt > 0)
            await asyncio.wait({program.ended}, timeout=KILL_WAIT)
        self._fault = "Its process could not be ended."
        return Exit(None)

    def _done(self, how: Exit) -> None:
        if self._program is not None:
            self._toolbox.launcher.take_word(self._program, how)

    def _send_display(self, mime: str, index: int, data: bytes) -> None:
        self.delivery.post({"t": "display", "run": self.request.run, "mime": mime, "index": index}, data)

    def _send_result(self, mime: str, data: bytes) -> None:
        self.delivery.post({"t": "result", "run": self.request.run, "mime": mime}, data)

    def _too_much(self) -> None:
        limit = self.request.output_limit
        self.stop(Stop("output_limit", f"It wrote more than {limit} bytes of output.", gentle=False))

    def _clean_up(self) -> None:
        if self._output is not None:
            self._output.close()
        if self._shown is not None:
            self._shown.close()
        if self._input is not None:
            self._input.close()
        if self._spare is not None:
            self._spare.job.close()
        if self._file:
            self._toolbox.code.remove(self.request)

    def _send_end(self, how: Exit) -> None:
        counts = self._output.counts if self._output is not None else {"stdout": 0, "stderr": 0}
        begin, end = self._times
        fields = describe_end(how, self._stop.result() if self._stop.done() else None, self._fault)
        shown = self._shown.forms + self._shown.results if self._shown is not None else 0
        fields["detail"] = " ".join(filter(None, (fields["detail"], self._note))) or None
        self.delivery.finish(
            {
                "run": self.request.run,
                **fields,
                "duration_ms": round((end - begin) * 1000, 3),
                "stdout_bytes": counts["stdout"],
                "stderr_bytes": counts["stderr"],
                "displays": max(0, shown - self.delivery.dropped) if self.request.detached else 0,
                "displays_dropped": (self._shown.dropped if self._shown is not None else 0) + self.delivery.dropped,
                "context": self.request.context,
                "context_state": self._context_state,
                "artifacts": self._found.entries,
                "artifacts_more": self._found.more,
            }
        )
