"""The contexts of the sandbox: which there are, their processes, and whose turn it is.

What a context's process says is not trusted: what is no message of it means that it is lost.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import os
import socket
import struct
import time
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import MESSAGE_SIZE, REQUEST, Exit, Job, Kind, Message, write_job
from sandpod_runner.processes.launcher import Launcher
from sandpod_runner.processes.program import LostError, Program
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.messages import MAX_CELLS, MAX_CONTEXTS, OUT_PIECE

logger = logging.getLogger(__name__)

_KILL_ROUNDS: Final = 10  # each of _KILL_WAIT seconds
_KILL_WAIT: Final = 0.5
_MESSAGES: Final = 2
"""Messages about one cell: that it has begun, and that it has ended."""
_MAX_LEFT: Final = 16
"""Pipes of ended cells that are read for the children which still write to them."""


@dataclass(slots=True, eq=False)
class Cell:
    """A cell that was sent. `begun` is set when its code begins, `ended` with how, and whether the process is lost."""

    begun: "asyncio.Future[None]"
    ended: "asyncio.Future[tuple[Exit, bool]]"


@dataclass(slots=True, eq=False)
class Process:
    """The process of a context, and the cell that it runs."""

    program: Program
    sock: socket.socket
    wanted: bool = True
    why: str = "The context's process had ended"
    number: int = 0
    cell: Cell | None = None
    left: list[int] = field(default_factory=list)


class Context:
    """One context. Its process is made when a cell needs it."""

    def __init__(self, name: str, language: str, launcher: Launcher, base: Job) -> None:
        self.name = name
        self.language = language
        self.started = time.time()
        self.turn = asyncio.Lock()
        self.waiting = 0
        self.lost: str | None = None
        """Why what it held is gone, until a cell has told it."""
        self._launcher = launcher
        self._base = base
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._process: Process | None = None

    @property
    def state(self) -> str:
        """What it is doing: idle, busy or lost."""
        return "busy" if self.turn.locked() else "lost" if self.lost else "idle"

    @property
    def stopped(self) -> bool:
        """Whether its process is being ended."""
        return self._process is not None and not self._process.wanted

    @property
    def empty(self) -> bool:
        """Whether nothing would be missed if it were forgotten."""
        return self._process is None and not self.turn.locked() and not self.waiting

    @property
    def relays(self) -> bool:
        """Whether its process passes a second interrupt on to all that the cell has started."""
        return bool(self._base.command)

    def send(self, job: Job, fds: list[int], *, cwd: str) -> tuple[Program, Cell]:
        """Send a cell to the process. The descriptors stay the caller's.

        Args:
            job: The cell: its code, and what it changes of environment, arguments and working directory.
            fds: What become descriptors 0, 1, 2 and the channel for what it shows.
            cwd: Where the process begins if there is none.

        Raises:
            LostError: There is none, and none can be started now.
        """
        if self._process is not None:
            try:
                return self._give(self._process, job, fds)
            except OSError:
                self._process.program.abandon()
                self._gone(self._process, Exit(None))
        try:
            return self._give(self._start(cwd), job, fds)
        except OSError as error:
            raise LostError("the context's process does not answer") from error

    def _give(self, process: Process, job: Job, fds: list[int]) -> tuple[Program, Cell]:
        process.number = next(self._numbers)
        process.cell = cell = Cell(self._loop.create_future(), self._loop.create_future())
        job_fd = write_job(job)
        try:
            socket.send_fds(process.sock, [REQUEST.pack(process.number)], [job_fd, *fds])
        finally:
            os.close(job_fd)
        return process.program, cell

    def keep_reading(self, fds: list[int]) -> None:
        """Read what children of ended cells still write, so that they are not ended by it, and forget it."""
        process = self._process
        if process is None:
            for fd in fds:
                os.close(fd)
            return
        for fd in fds:
            process.left.append(fd)
            self._loop.add_reader(fd, self._discard, process, fd)
        while len(process.left) > _MAX_LEFT:
            self._drop(process, process.left[0])

    @property
    def pid(self) -> int | None:
        """Its process, if it has one."""
        process = self._process
        known = process is not None and process.program.pid.done() and not process.program.pid.exception()
        return process.program.pid.result() if process is not None and known else None

    def left_behind(self) -> set[int]:
        """Return the processes that its cells have left, without those below them."""
        if self.pid is None:
            return set()
        children = process_tree.children(self.pid)
        node = self._node(children)
        return children if node is None else (children | process_tree.children(node)) - {node}

    def new_processes(self, before: set[int], since: int) -> set[int]:
        """Return the processes that a cell has started.

        Args:
            before: What cells had left before it.
            since: When it began, as `process_tree` counts it.
        """
        if self.pid is None:
            return set()
        table = process_tree.parents()
        own = {self.pid, self._node({pid for pid, parent in table.items() if parent == self.pid})}
        candidates = process_tree.trees([self.pid], table) - own - process_tree.trees(before, table)
        return {pid for pid in candidates if process_tree.alive_since(pid) >= since}

    def _node(self, children: set[int]) -> int | None:
        """Return the Node process of a context of JavaScript: the first that its helper started."""
        return (
            min(children, key=lambda pid: (process_tree.alive_since(pid), pid), default=None) if self.relays else None
        )

    def lose(self, why: str) -> None:
        """End the process at once; the next cell tells why its variables are gone."""
        process = self._process
        if process is not None:
            process.why = why
            process.program.abandon()

    async def end(self) -> None:
        """End the process and all that came from it, if there is one. Nothing is lost that somebody still wants."""
        process, self.lost = self._process, None
        if process is None:
            return
        process.wanted = False
        pid = self.pid
        if pid is None:
            process.program.abandon()
            self._gone(process, Exit(None))
            return
        for attempt in range(_KILL_ROUNDS):
            if process.program.ended.done():
                break
            process_tree.end_trees([pid], freeze=attempt > 0)
            await asyncio.wait({process.program.ended}, timeout=_KILL_WAIT)
        await self._launcher.sweep()
        self._gone(process, Exit(None))

    def _start(self, cwd: str) -> Process:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        ours.setblocking(False)
        job = replace(self._base, cwd=cwd, context=True)
        try:
            program = self._launcher.start(job, [null, null, null, theirs.fileno()])
        except LostError:
            ours.close()
            raise
        finally:
            os.close(null)
            theirs.close()
        self._process = process = Process(program, ours)
        self.started = time.time()
        self._loop.add_reader(ours, self._receive, process)
        program.ended.add_done_callback(lambda ended: self._gone(process, ended.result()))
        program.pid.add_done_callback(lambda pid: self._gone(process, Exit(None)) if pid.exception() else None)
        return process

    def _receive(self, process: Process) -> None:
        try:
            data = process.sock.recv(MESSAGE_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            message = Message.unpack(data)
        except (ValueError, struct.error):
            # Its end follows; one that has only closed its socket is of no use either.
            self._loop.remove_reader(process.sock)
            process.program.abandon()
            return
        cell = process.cell
        if cell is None or message.number != process.number:
            return
        if message.kind == Kind.READY and not cell.begun.done():
            cell.begun.set_result(None)
        elif message.kind == Kind.EXITED and not cell.ended.done():
            cpu = message.cpu if math.isfinite(message.cpu) else 0.0
            cell.ended.set_result((Exit(message.status & 0xFF00, max(0.0, cpu), max(0, message.max_rss)), False))

    def _gone(self, process: Process, how: Exit) -> None:
        if process.cell is not None and not process.cell.ended.done():
            for _ in range(_MESSAGES):
                self._receive(process)
        if process.cell is not None and not process.cell.ended.done():
            process.cell.ended.set_result((how, True))
        if self._process is not process:
            return
        self._process = None
        if process.wanted:
            self.lost = f"{process.why}: this cell began without its variables."
        self._loop.remove_reader(process.sock)
        process.sock.close()
        for fd in list(process.left):
            self._drop(process, fd)

    def _discard(self, process: Process, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(fd, OUT_PIECE):
                self._drop(process, fd)

    def _drop(self, process: Process, fd: int) -> None:
        process.left.remove(fd)
        self._loop.remove_reader(fd)
        os.close(fd)


class Contexts:
    """The contexts, by name."""

    def __init__(self, launcher: Launcher, base: Job, commands: dict[str, list[str]]) -> None:
        """Begin with none. The commands are those of each language's contexts; Python's is empty."""
        self._launcher = launcher
        self._base = base
        self._commands = commands
        self._contexts: dict[str, Context] = {}

    def place(self, name: str, language: str) -> Context:
        """Return the context of that name, which is new if there was none, for one more cell.

        Raises:
            Refusal: session_busy, too many cells wait there or there are too many contexts; invalid_argument, it is of
                another language.
        """
        context = self._contexts.get(name)
        if context is not None and context.language != language:
            if not context.empty:
                other = f"That context is of {context.language}: choose another name, or restart it first."
                raise Refusal("invalid_argument", other)
            del self._contexts[name]
            context = None
        if context is None:
            if len(self._contexts) >= MAX_CONTEXTS:
                self._make_room()
            base = replace(self._base, command=self._commands[language])
            context = self._contexts[name] = Context(name, language, self._launcher, base)
        if context.waiting >= MAX_CELLS:
            raise Refusal("session_busy", f"{MAX_CELLS} cells wait for this context already, which is the most.")
        return context

    def find(self, name: Any) -> Context:
        """Return a context.

        Raises:
            Refusal: not_found.
        """
        context = self._contexts.get(name) if isinstance(name, str) else None
        if context is None:
            raise Refusal("not_found", "There is no context of that name.")
        return context

    def pids(self) -> dict[Context, int]:
        """Return the processes that there are."""
        return {context: context.pid for context in self._contexts.values() if context.pid is not None}

    def describe(self) -> list[dict[str, Any]]:
        """Return what is told of the contexts, but for those that were restarted and have nothing left."""
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
