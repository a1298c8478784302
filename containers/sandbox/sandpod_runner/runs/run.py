"""One run from its acceptance to its `end`, which comes once, after all output, with nothing of it left alive."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sandpod_runner.files.artifacts import Artifacts, Found
from sandpod_runner.files.disk import DiskWatch
from sandpod_runner.ipc.jobs import Exit, Job
from sandpod_runner.limits.memory import Watch
from sandpod_runner.output.output_log import STREAMS
from sandpod_runner.processes.languages import Languages
from sandpod_runner.processes.launcher import Launcher
from sandpod_runner.processes.node_pool import NodePool
from sandpod_runner.processes.program import LostError, Program
from sandpod_runner.runs import outcome
from sandpod_runner.runs.code_folder import CodeFolder
from sandpod_runner.runs.context import Context, Contexts
from sandpod_runner.runs.delivery import Delivery
from sandpod_runner.runs.outcome import Stop
from sandpod_runner.runs.request import RunRequest
from sandpod_runner.runs.streams import Streams

logger = logging.getLogger(__name__)

START_SECONDS: Final = 30.0  # longest wait for a process: the zygote may just be starting again


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What all runs share."""

    launcher: Launcher
    languages: Languages
    node: NodePool | None
    contexts: Contexts
    code: CodeFolder
    base: Job = field(repr=False)
    memory: Watch | None
    disk: DiskWatch | None
    artifacts: Artifacts


@dataclass(slots=True)
class Ending:
    """How a run ended."""

    how: Exit = field(default_factory=lambda: Exit(None))
    fault: str | None = None  # what went wrong on the runner's side
    note: str | None = None  # what else the caller should know
    context_state: str | None = None  # what became of its context
    seconds: float = 0.0  # how long its code ran


class Run:
    """A run that was accepted, in a process of its own or as a cell of a context."""

    def __init__(
        self, request: RunRequest, delivery: Delivery, toolbox: Toolbox, cwd: str, context: Context | None
    ) -> None:
        self.request = request
        self.delivery = delivery
        self.toolbox = toolbox
        self.cwd = cwd
        self.context = context
        self.pid: int | None = None  # the process that it runs in, once there is one
        self.stopping: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self.streams = Streams(request, self.delivery, self.stop)
        self.mark = toolbox.artifacts.begin(request.run)
        self._kills = toolbox.memory.kills() if toolbox.memory else 0

    @property
    def stopped(self) -> Stop | None:
        """What it is being ended for, if it is."""
        return self.stopping.result() if self.stopping.done() else None

    def stop(self, why: Stop) -> None:
        """End it; the first reason counts."""
        if not self.stopping.done():
            self.stopping.set_result(why)

    async def live(self, follow: Callable[[], Awaitable[Ending]]) -> None:
        """See it through, where `follow` sees its code to the end, and send its `end`."""
        ending, found = Ending(), Found([], 0)
        try:
            ending = await follow()
            self._look_at_memory(ending)
        except Exception:
            logger.exception("a run failed inside the runner")
            ending.fault = "The runner failed: this is a fault of its own."
        finally:
            self.streams.close()
        try:
            found = await self.toolbox.artifacts.end(self.request.run, self.mark)
        except Exception:
            logger.exception("the files of a run could not be looked through")
        self._send_end(ending, found)

    async def started(self, program: Program) -> int:
        """Return a program's process. Raises LostError: There is none, or the run was stopped before there was one."""
        seconds = min(START_SECONDS, self.request.timeout)
        await self.first(seconds, program.pid)
        if program.pid.done():
            return program.pid.result()
        program.abandon()
        if not self.stopping.done() and seconds < START_SECONDS:
            self._stop_late()
        if self.stopping.done():
            raise LostError("it was stopped before")
        self.toolbox.launcher.renew()
        raise LostError("it took too long")

    async def over(self, ended: "asyncio.Future[Any]") -> bool:
        """Wait until the code has ended or must end, and return whether it has."""
        await self.first(self.request.timeout, ended)
        if not ended.done():
            self._stop_late()
        return ended.done()

    async def first(self, seconds: float | None, *events: "asyncio.Future[Any]") -> None:
        """Wait for one of these events, but no longer than these seconds or until the run is stopped."""
        await asyncio.wait({*events, self.stopping}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def _stop_late(self) -> None:
        self.stop(Stop("timeout", f"It was stopped after {self.request.timeout:g} seconds."))

    def _look_at_memory(self, ending: Ending) -> None:
        memory, how = self.toolbox.memory, ending.how
        limit = None if memory is None else memory.limit
        by_kernel = memory is not None and memory.kills() > self._kills
        if (by_kernel and outcome.killed(how)) or outcome.ran_out(self.request.language, how, self.streams.last_words):
            self.stop(outcome.out_of_memory(limit, [context.state for context in self.toolbox.contexts.pids()]))
        elif by_kernel and limit is not None:
            ending.note = " ".join(filter(None, (ending.note, outcome.killed_for_memory(limit))))

    def _send_end(self, ending: Ending, found: Found) -> None:
        shown, dropped = self.streams.shown, self.delivery.dropped
        fields = outcome.describe_end(ending.how, self.stopped, ending.fault)
        fields["detail"] = (
            " ".join(filter(None, (fields["detail"], ending.note, outcome.about_kept(shown.kept)))) or None
        )
        self.delivery.finish(
            {
                "run": self.request.run,
                **fields,
                "duration_ms": round(ending.seconds * 1000, 3),
                **{f"{name}_bytes": count for name, count in zip(STREAMS, self.delivery.log.counts, strict=True)},
                "displays": max(0, shown.forms + shown.results - dropped) if self.request.detached else 0,
                "displays_dropped": shown.dropped + dropped,
                "context": self.request.context,
                "context_state": ending.context_state,
                "artifacts": found.entries,
                "artifacts_more": found.more,
            }
        )
