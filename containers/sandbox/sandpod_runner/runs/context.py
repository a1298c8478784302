"""The contexts of the sandbox and their processes.

A process is given one cell after the other, and reports, untrusted, when each begins and ends.
"""

import asyncio
import itertools
import math
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.descriptors import closing
from sandpod_runner.ipc.jobs import MESSAGE_SIZE, REQUEST, Exit, Job, Kind, Message, write_job
from sandpod_runner.output.stdio_pipes import PipeReader, forget
from sandpod_runner.processes.launcher import Launcher
from sandpod_runner.processes.node_pool import BOOTSTRAP
from sandpod_runner.processes.program import LostError
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.messages import MAX_CELLS, MAX_CONTEXTS

_MESSAGES: Final = 2  # messages about one cell: that it has begun, and that it has ended
_MAX_LEFT: Final = 16  # pipes of ended cells that are read for the children which still write to them
_CELLS: Final = os.path.join(os.path.dirname(BOOTSTRAP), "context.cjs")


@dataclass(slots=True, eq=False)
class Cell:
    """A cell that was sent. `begun` is set when its code begins, `ended` with how, and whether the process is lost."""

    process: "ContextProcess"
    number: int
    begun: "asyncio.Future[None]"
    ended: "asyncio.Future[tuple[Exit, bool]]"
    before: set[int]  # processes that earlier cells have left, without those below them
    since: int  # when it was sent, as `process_tree.now`

    def started(self) -> set[int]:
        """Return the processes that it has started and that are still there."""
        own, table = self.process.own(), process_tree.parents()
        if not own:
            return set()
        candidates = process_tree.trees(own, table) - own - process_tree.trees(self.before, table)
        return {pid for pid in candidates if process_tree.alive_since(pid) >= self.since}


class ContextProcess:
    """One process, asked for at once; `gone` is called at its end. Raises LostError, OSError: It can't be started."""

    def __init__(self, launcher: Launcher, base: Job, cwd: str, gone: Callable[["ContextProcess"], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.why = "The context's process had ended"  # what is said of its end
        self._has_helper = bool(base.command)
        self._gone = gone
        self._numbers = itertools.count(1)
        self._cell: Cell | None = None
        self._left: list[PipeReader] = []
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            self.program = launcher.start(replace(base, cwd=cwd, context=True), [null, null, null, theirs.detach()])
        except (LostError, OSError):
            self._sock.close()
            theirs.close()
            raise
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock, self._receive)
        self.program.ended.add_done_callback(lambda ended: self.close(ended.result()))

    @property
    def _open(self) -> bool:
        return self._sock.fileno() >= 0

    def give(self, job: Job, fds: list[int]) -> Cell:
        """Give it a cell. The descriptors stay the caller's. Raises OSError: It does not take it."""
        number, own = next(self._numbers), self.own()
        before = set[int]().union(*map(process_tree.children, own)) - own
        begun, ended = self._loop.create_future(), self._loop.create_future()
        self._cell = cell = Cell(self, number, begun, ended, before, process_tree.now())
        with closing(write_job(job)) as job_fd:
            socket.send_fds(self._sock, [REQUEST.pack(number)], [job_fd, *fds])
        return cell

    def keep_reading(self, pipes: list[PipeReader]) -> None:
        """Read what children of ended cells still write, so that they are not ended by it, and forget it."""
        for pipe in pipes:
            pipe.take = forget
            pipe.resume()
        left = [*pipes, *(each for each in self._left if each.open)]
        most = _MAX_LEFT if self._open else 0
        for each in left[most:]:
            each.close()
        self._left = left[:most]

    def close(self, how: Exit) -> None:
        """Record that it has ended, or is ignored from now on."""
        if not self._open:
            return
        cell = self._cell
        if cell is not None:
            for _ in range(_MESSAGES):
                self._receive()
            if not cell.ended.done():
                cell.ended.set_result((how, True))
        self._loop.remove_reader(self._sock)
        self._sock.close()
        for pipe in self._left:
            pipe.close()
        self._gone(self)

    def own(self) -> set[int]:
        """Return the processes that the context itself consists of, if it is there: one, or a helper and Node."""
        pid = self.program.number
        if pid is None or not self._open:
            return set()
        if not self._has_helper:
            return {pid}
        node = min(process_tree.children(pid), key=lambda child: (process_tree.alive_since(child), child), default=pid)
        return {pid, node}  # the first that its helper started

    def _receive(self) -> None:
        try:
            data = self._sock.recv(MESSAGE_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            message = Message.unpack(data)
        except (ValueError, struct.error):
            # Its end follows; one that has only closed its socket is of no use either.
            self._loop.remove_reader(self._sock)
            self.program.abandon()
            return
        cell = self._cell
        if cell is None or message.number != cell.number:
            return
        if message.kind == Kind.READY and not cell.begun.done():
            cell.begun.set_result(None)
        elif message.kind == Kind.EXITED and not cell.ended.done():
            cpu = message.cpu if math.isfinite(message.cpu) else 0.0
            cell.ended.set_result((Exit(message.status & 0xFF00, max(0.0, cpu), max(0, message.max_rss)), False))


class Context:
    """One context. Its process is made when a cell needs it."""

    def __init__(self, name: str, language: str, launcher: Launcher, base: Job) -> None:
        self.name = name
        self.language = language
        self.started = time.time()
        self.lock = asyncio.Lock()  # held by the cell that runs
        self.waiting = 0
        self.lost: str | None = None  # why what it held is gone, until a cell has reported it
        self.process: ContextProcess | None = None
        self._launcher = launcher
        self._base = base

    @property
    def state(self) -> str:
        """What it is doing: idle, busy or lost."""
        return "busy" if self.lock.locked() else "lost" if self.lost else "idle"

    @property
    def stopped(self) -> bool:
        """Whether nothing is to be ended here."""
        return self.process is None

    @property
    def empty(self) -> bool:
        """Whether nothing would be missed if it were forgotten."""
        return self.process is None and not self.lock.locked() and not self.waiting

    def send(self, job: Job, fds: list[int], *, cwd: str) -> Cell:
        """Send a cell to the process, or a new one that begins in `cwd`. Raises LostError: It can't be started."""
        if self.process is not None:
            try:
                return self.process.give(job, fds)
            except OSError:
                self.process.program.abandon()
                self.process.close(Exit(None))
        try:
            self.process = ContextProcess(self._launcher, self._base, cwd, self._gone)
            self.started = time.time()
            return self.process.give(job, fds)
        except OSError as error:
            raise LostError("the context's process does not answer") from error

    def lose(self, why: str) -> None:
        """End the process at once; the next cell says why its variables are gone."""
        if self.process is not None:
            self.process.why = why
            self.process.program.abandon()

    async def end(self) -> None:
        """End the process and all that came from it, if there is one. Nothing is lost that somebody still wants."""
        process, self.process, self.lost = self.process, None, None
        if process is None:
            return
        if process.program.number is None:
            process.program.abandon()
        else:
            await process.program.kill()
            await self._launcher.sweep()
        process.close(Exit(None))

    def _gone(self, process: ContextProcess) -> None:
        if self.process is process:
            self.process = None
            self.lost = f"{process.why}: this cell began without its variables."


class Contexts:
    """The contexts, by name."""

    def __init__(self, launcher: Launcher, base: Job, node: str | None) -> None:
        self._launcher = launcher
        # Python's processes are forked. The parser that Node's own REPL uses is internal.
        commands = {"python": [], "javascript": [node or "", "--expose-internals", _CELLS]}
        self._bases = {language: replace(base, command=command) for language, command in commands.items()}
        self._contexts: dict[str, Context] = {}

    def place(self, name: str, language: str) -> Context:
        """Return the context of that name for one more cell. Raises Refusal: Too many, or of another language."""
        context = self._contexts.get(name)
        if context is not None and context.language != language:
            if not context.empty:
                other = f"That context runs {context.language}: choose another name, or restart it first."
                raise Refusal("invalid_argument", other)
            del self._contexts[name]
            context = None
        if context is None:
            if len(self._contexts) >= MAX_CONTEXTS:
                spare = next((name for name, each in self._contexts.items() if each.empty), None)
                if spare is None:
                    most = f"The sandbox has {MAX_CONTEXTS} contexts, which is the most"
                    raise Refusal("session_busy", f"{most}: restart one that is not needed any more.")
                del self._contexts[spare]
            context = self._contexts[name] = Context(name, language, self._launcher, self._bases[language])
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
        programs = {context: context.process.program for context in self._contexts.values() if context.process}
        return {context: program.number for context, program in programs.items() if program.number is not None}

    def describe(self) -> list[dict[str, Any]]:
        """Return a row for each of the contexts, but for those that were restarted and have nothing left."""
        return [
            {"name": context.name, "language": context.language, "state": context.state, "started": context.started}
            for context in self._contexts.values()
            if context.lost or not context.empty
        ]
