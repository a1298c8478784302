"""The contexts of the sandbox: which there are, and whose turn it is in each."""

import asyncio
import time
from dataclasses import replace
from typing import Any

from sandpod_runner.ipc.jobs import Exit, Job
from sandpod_runner.output.pipe_reader import PipeReader
from sandpod_runner.processes.launcher import Launcher
from sandpod_runner.processes.program import LostError, Program
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.messages import MAX_CELLS, MAX_CONTEXTS
from sandpod_runner.runs.context_process import Cell, ContextProcess


class Context:
    """One context. Its process is made when a cell needs it."""

    def __init__(self, name: str, language: str, launcher: Launcher, base: Job) -> None:
        self.name = name
        self.language = language
        self.started = time.time()
        self.turn = asyncio.Lock()
        self.waiting = 0
        self.lost: str | None = None  # why what it held is gone, until a cell has reported it
        self.process: ContextProcess | None = None
        self._launcher = launcher
        self._base = base
        self._why = "The context's process had ended"

    @property
    def state(self) -> str:
        """What it is doing: idle, busy or lost."""
        return "busy" if self.turn.locked() else "lost" if self.lost else "idle"

    @property
    def stopped(self) -> bool:
        """Whether nothing is to be ended here."""
        return self.process is None

    @property
    def empty(self) -> bool:
        """Whether nothing would be missed if it were forgotten."""
        return self.process is None and not self.turn.locked() and not self.waiting

    @property
    def pid(self) -> int | None:
        """Its process, if it has one."""
        return None if self.process is None else self.process.pid

    def send(self, job: Job, fds: list[int], *, cwd: str) -> tuple[Program, Cell]:
        """Send a cell to the process, or a new one that begins in `cwd`. Raises LostError: It can't be started."""
        if self.process is not None:
            try:
                return self.process.program, self.process.give(job, fds)
            except OSError:
                self.process.program.abandon()
                self.process.close(Exit(None))
        try:
            self.process = process = ContextProcess(self._launcher, self._base, cwd, self._gone)
            self.started = time.time()
            return process.program, process.give(job, fds)
        except OSError as error:
            raise LostError("the context's process does not answer") from error

    def keep_reading(self, pipes: list[PipeReader]) -> None:
        """Read what children of ended cells still write, as long as the process lives."""
        for pipe in pipes:
            if self.process is None:
                pipe.close()
            else:
                self.process.keep_reading(pipe)

    def lose(self, why: str) -> None:
        """End the process at once; the next cell says why its variables are gone."""
        if self.process is not None:
            self._why = why
            self.process.program.abandon()

    async def end(self) -> None:
        """End the process and all that came from it, if there is one. Nothing is lost that somebody still wants."""
        process, self.process, self.lost = self.process, None, None
        if process is None:
            return
        if process.pid is None:
            process.program.abandon()
        else:
            await process.program.kill()
            await self._launcher.sweep()
        process.close(Exit(None))

    def _gone(self, process: ContextProcess) -> None:
        if self.process is process:
            self.process = None
            self.lost = f"{self._why}: this cell began without its variables."
            self._why = "The context's process had ended"


class Contexts:
    """The contexts, by name."""

    def __init__(self, launcher: Launcher, base: Job, commands: dict[str, list[str]]) -> None:
        """Begin with none. The commands are those of each language's contexts; Python's is empty."""
        self._launcher = launcher
        self._base = base
        self._commands = commands
        self._contexts: dict[str, Context] = {}

    def place(self, name: str, language: str) -> Context:
        """Return the context of that name, a new one if there was none, for one more cell.

        Raises Refusal: session_busy: too many cells or contexts; invalid_argument: it is of another language.
        """
        context = self._contexts.get(name)
        if context is not None and context.language != language:
            if not context.empty:
                other = f"That context runs {context.language}: choose another name, or restart it first."
                raise Refusal("invalid_argument", other)
            del self._contexts[name]
            context = None
        if context is None:
            if len(self._contexts) >= MAX_CONTEXTS:
                self._make_room()
            base = replace(self._base, command=self._commands[language])
            context = self._contexts[name] = Context(name, language, self._launcher, base)
        if context.waiting >= MAX_CELLS:
            raise Refusal("session_busy", f"{MAX_CELLS} cells already wait for this context, which is the maximum.")
        return context

    def find(self, name: Any) -> Context:
        """Return a context. Raises Refusal: not_found."""
        context = self._contexts.get(name) if isinstance(name, str) else None
        if context is None:
            raise Refusal("not_found", "Unknown context.")
        return context

    def pids(self) -> dict[Context, int]:
        """Return the processes that there are."""
        return {context: context.pid for context in self._contexts.values() if context.pid is not None}

    def describe(self) -> list[dict[str, Any]]:
        """Return a row for each of the contexts, but for those that were restarted and have nothing left."""
        return [
            {"name": context.name, "language": context.language, "state": context.state, "started": context.started}
            for context in self._contexts.values()
            if context.lost or not context.empty
        ]

    def _make_room(self) -> None:
        for name, context in self._contexts.items():
            if context.empty:
                del self._contexts[name]
                return
        message = (
            f"The sandbox has {MAX_CONTEXTS} contexts, which is the most: restart one that is not needed any more."
        )
        raise Refusal("session_busy", message)
