"""One run from its acceptance to its `end`, which comes once, after all output, with nothing of it left alive."""

import asyncio
import contextlib
import logging
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sandpod_runner.files.artifacts import Found
from sandpod_runner.files.server import Storage
from sandpod_runner.files.workspace import make_usable
from sandpod_runner.ipc.display_records import KEPT_FOLDER
from sandpod_runner.ipc.jobs import Exit, Job
from sandpod_runner.limits.memory import MIB, Watch
from sandpod_runner.output.output_log import STREAMS
from sandpod_runner.processes.environment import CommandLanguage, Languages
from sandpod_runner.processes.launcher import Launcher
from sandpod_runner.processes.node_pool import NodePool
from sandpod_runner.processes.program import LostError, Program
from sandpod_runner.protocol.errors import refusal_of
from sandpod_runner.runs import outcome
from sandpod_runner.runs.context import Context, Contexts
from sandpod_runner.runs.delivery import Delivery
from sandpod_runner.runs.outcome import Stop
from sandpod_runner.runs.request import RunRequest
from sandpod_runner.runs.streams import Streams

logger = logging.getLogger(__name__)

START_SECONDS: Final = 30.0  # longest wait for a process: the zygote may just be starting again
_SUFFIXES = {"python": ".py", "javascript": ".js", "shell": ".sh"}


class CodeFolder:
    """Writes the code of programs for tracebacks and `multiprocessing` to read, into a folder outside the workspace."""

    def __init__(self, tmp: str, commands: Mapping[str, CommandLanguage]) -> None:
        self._suffixes = {**{name: language.extension for name, language in commands.items()}, **_SUFFIXES}
        self.path = f"{tmp}/.sandpod-{os.urandom(4).hex()}"
        os.makedirs(self.path, mode=0o700, exist_ok=True)

    def write(self, name: str, language: str, code: bytes) -> str:
        """Write a program's code and return the file's path. Raises Refusal: The system does not let it."""
        path = f"{self.path}/{name}{self._suffixes[language]}"
        try:
            try:
                _write(path, code)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                self._repair()
                _write(path, code)
        except OSError as error:
            self.remove(path)
            raise refusal_of(error) from error
        return path

    def remove(self, path: str) -> None:
        """Remove a program's file; Node may have renamed it to say that it is a module."""
        for name in (path, f"{path.removesuffix('.js')}.mjs") if path.endswith(".js") else (path,):
            with contextlib.suppress(OSError):
                os.unlink(name)

    def _repair(self) -> None:
        """Make the folder anew: it belongs to the programs' user, so a program may have removed it."""
        make_usable(os.path.dirname(self.path))
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(self.path).st_mode):
                os.unlink(self.path)
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        make_usable(self.path)


def _write(path: str, code: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb", buffering=0) as file:
        file.write(code)


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
    storage: Storage
    max_timeout: float  # seconds that a run takes at most, whatever it asks for
    max_output: int  # bytes that a run writes at most


class Run(ABC):
    """A run that was accepted. A subclass runs its code."""

    def __init__(
        self, request: RunRequest, delivery: Delivery, toolbox: Toolbox, cwd: str, context: Context | None = None
    ) -> None:
        self.request = request
        self.delivery = delivery
        self.toolbox = toolbox
        self.cwd = cwd
        self.context = context
        self.pid: int | None = None  # the process that it runs in, once there is one
        self.stopping: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self.streams = Streams(request, delivery, self.stop)
        self.mark = toolbox.storage.artifacts.begin(request.run)
        self.how = Exit(None)  # how its code ended
        self.seconds = 0.0  # how long its code ran
        self.fault: str | None = None  # what went wrong on the runner's side
        self.note: str | None = None  # what else the caller should know
        self.context_state: str | None = None  # what became of its context
        self._kills = toolbox.memory.kills() if toolbox.memory else 0

    @property
    def stopped(self) -> Stop | None:
        """What it is being ended for, if it is."""
        return self.stopping.result() if self.stopping.done() else None

    def stop(self, why: Stop) -> None:
        """End it; the first reason counts."""
        if not self.stopping.done():
            self.stopping.set_result(why)

    @abstractmethod
    async def follow(self) -> None:
        """See its code to the end, and record how it ended."""

    async def live(self) -> None:
        """See it through, and send its `end`."""
        found = Found([], 0)
        try:
            await self.follow()
            self._look_at_memory()
        except Exception:
            logger.exception("a run failed inside the runner")
            self.fault = "The runner failed: this is a fault of its own."
        finally:
            self.streams.close()
        try:
            found = await self.toolbox.storage.artifacts.end(self.request.run, self.mark)
        except Exception:
            logger.exception("the files of a run could not be looked through")
        self._send_end(found)

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

    def _look_at_memory(self) -> None:
        memory, how = self.toolbox.memory, self.how
        limit = None if memory is None else memory.limit
        by_kernel = memory is not None and memory.kills() > self._kills
        if (by_kernel and outcome.killed(how)) or outcome.ran_out(self.request.language, how, self.streams.last_words):
            self.stop(outcome.out_of_memory(limit, [context.state for context in self.toolbox.contexts.pids()]))
        elif by_kernel and limit is not None:
            killed = f"the kernel killed a process: the sandbox's {limit // MIB} MiB of memory had run out."
            self.note = " ".join(filter(None, (self.note, f"While it ran, {killed}")))

    def _send_end(self, found: Found) -> None:
        streams, dropped = self.streams, self.delivery.dropped
        fields = outcome.describe_end(self.how, self.stopped, self.fault)
        sentences = [fields["detail"], self.note]
        if streams.kept:
            kept = f"Pictures too large or too many for this answer: {streams.kept}."
            sentences.append(f"{kept} They are whole in the folder {KEPT_FOLDER}.")
        fields["detail"] = " ".join(filter(None, sentences)) or None
        self.delivery.finish(
            {
                "run": self.request.run,
                **fields,
                "duration_ms": round(self.seconds * 1000, 3),
                **{f"{name}_bytes": count for name, count in zip(STREAMS, self.delivery.log.counts, strict=True)},
                "displays": max(0, streams.forms + streams.results - dropped) if self.request.detached else 0,
                "displays_dropped": streams.dropped + dropped,
                "context": self.request.context,
                "context_state": self.context_state,
                "artifacts": found.entries,
                "artifacts_more": found.more,
            }
        )
