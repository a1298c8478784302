"""One run from its acceptance to its `end`, which comes once, after all output, with nothing of it left alive."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sandpod_runner.files.artifacts import Found
from sandpod_runner.files.disk import DiskWatch
from sandpod_runner.files.server import Storage
from sandpod_runner.files.workspace import make_usable
from sandpod_runner.ipc.descriptors import closing, write_all
from sandpod_runner.ipc.display_records import KEPT_FOLDER
from sandpod_runner.ipc.jobs import Exit, Job
from sandpod_runner.limits.memory import MIB, Watch
from sandpod_runner.output.output_log import STREAMS
from sandpod_runner.processes.environment import CommandLanguage, Languages
from sandpod_runner.processes.launcher import Launcher
from sandpod_runner.processes.node_pool import NodePool
from sandpod_runner.processes.program import LostError, Program
from sandpod_runner.protocol.errors import refusal_of
from sandpod_runner.protocol.messages import STOP_GRACE
from sandpod_runner.runs.context import Context, Contexts
from sandpod_runner.runs.delivery import Delivery
from sandpod_runner.runs.request import RunRequest, Stop
from sandpod_runner.runs.streams import Streams

logger = logging.getLogger(__name__)

START_SECONDS: Final = 30.0  # longest wait for a process: the zygote may just be starting again
_SHELL_KILLED: Final = 128 + signal.SIGKILL
_MEMORY_ERROR: Final = re.compile(rb"[\w.]*MemoryError(:|$)")
_NODE_MEMORY_ERROR: Final = re.compile(
    rb"JavaScript heap out of memory|'ERR_MEMORY_ALLOCATION_FAILED'|^RangeError: Array buffer allocation failed",
    re.MULTILINE,
)
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
    with closing(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)) as fd:
        write_all(fd, code)  # a disk that is almost full takes a part of it, without an error


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
    packages: DiskWatch | None
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

    def feed(self, data: bytes, offset: int | None, *, last: bool) -> None:
        """Take input for its code; see `Streams`."""
        self.streams.feed(data, offset, last=last)

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

    async def until_ended(self, program: Program, ask: Callable[[], object]) -> Exit:
        """Return how a program ended; one that must end is asked to first, if it may clean up, and then killed."""
        if not await self.over(program.ended):
            if self.stopping.result().gentle:
                ask()
                await asyncio.wait({program.ended}, timeout=STOP_GRACE)
            await program.kill()
        if program.ended.done():
            return program.ended.result()
        self.fault = "Its process could not be ended."
        return Exit(None)

    async def first(self, seconds: float | None, *events: "asyncio.Future[Any]") -> None:
        """Wait for one of these events, but no longer than these seconds or until the run is stopped."""
        await asyncio.wait({*events, self.stopping}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def _stop_late(self) -> None:
        self.stop(Stop("timeout", f"It was stopped after {self.request.timeout:g} seconds."))

    def _look_at_memory(self) -> None:
        memory, how = self.toolbox.memory, self.how
        limit = None if memory is None else memory.limit
        by_kernel = memory is not None and memory.kills() > self._kills
        if (by_kernel and killed(how)) or ran_out(self.request.language, how, self.streams.last_words):
            self.stop(out_of_memory(limit, [context.state for context in self.toolbox.contexts.pids()]))
        elif by_kernel and limit is not None:
            lack = f"the sandbox's {limit // MIB} MiB of memory had run out."
            self.note = " ".join(filter(None, (self.note, f"While it ran, the kernel killed a process: {lack}")))

    def _send_end(self, found: Found) -> None:
        streams, dropped = self.streams, self.delivery.dropped
        fields = describe_end(self.how, self.stopped, self.fault)
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


def out_of_memory(limit: int | None, contexts: Iterable[str] = ()) -> Stop:
    """Return the end of a run that took too much memory; `contexts` are the states of those that have a process."""
    if limit is None:
        return Stop("out_of_memory", "It asked for more memory than it can have.", gentle=False)
    idle = sum(state == "idle" for state in contexts)
    others = f", of which idle contexts hold a part ({idle}; restart_context ends one)" if idle else ""
    detail = f"It used more than the sandbox's {limit // MIB} MiB of memory{others}."
    return Stop("out_of_memory", detail, gentle=False)


def ran_out(language: str, how: Exit, last_words: bytes) -> bool:
    """Return whether a language's own runtime gave up for lack of memory."""
    if how.status == 0:
        return False
    if language == "javascript":
        return _NODE_MEMORY_ERROR.search(last_words) is not None
    lines = last_words.strip().rsplit(b"\n", 1)
    return language == "python" and _MEMORY_ERROR.match(lines[-1]) is not None


def killed(how: Exit) -> bool:
    """Return whether the program, or the last one that a shell ran, was killed outright."""
    if how.status is None:
        return False
    if os.WIFSIGNALED(how.status):
        return os.WTERMSIG(how.status) == signal.SIGKILL
    return os.WEXITSTATUS(how.status) == _SHELL_KILLED


def describe_end(how: Exit, stop: Stop | None, fault: str | None) -> dict[str, Any]:
    """Return the fields of an `end` that say how it came."""
    exit_code = signal_name = None
    if how.status is None:
        fault = fault or "How it ended is not known: the process that had started it was killed."
    elif os.WIFSIGNALED(how.status):
        number = os.WTERMSIG(how.status)
        signal_name = next((known.name for known in signal.Signals if known == number), f"SIG{number}")
    else:
        exit_code = os.WEXITSTATUS(how.status)
    return {
        "outcome": stop.outcome if stop else ("ok" if exit_code == 0 and fault is None else "error"),
        "exit_code": exit_code,
        "signal": signal_name,
        "cpu_ms": round(how.cpu * 1000, 3),
        "max_rss_bytes": how.max_rss,
        "detail": (stop.detail if stop else None) or fault,
    }
