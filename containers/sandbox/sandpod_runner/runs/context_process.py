"""The process of a context: it is given one cell after the other, and reports, untrusted, when each begins and ends."""

import asyncio
import itertools
import math
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import MESSAGE_SIZE, REQUEST, Exit, Job, Kind, Message, write_job
from sandpod_runner.output.pipe_reader import PipeReader
from sandpod_runner.processes.launcher import Launcher

_MESSAGES: Final = 2  # messages about one cell: that it has begun, and that it has ended
_MAX_LEFT: Final = 16  # pipes of ended cells that are read for the children which still write to them


@dataclass(slots=True, eq=False)
class Cell:
    """A cell that was sent. `begun` is set when its code begins, `ended` with how, and whether the process is lost."""

    begun: "asyncio.Future[None]"
    ended: "asyncio.Future[tuple[Exit, bool]]"


class ContextProcess:
    """One process, asked for at once; `gone` is called at its end. Raises LostError, OSError: It can't be started."""

    def __init__(self, launcher: Launcher, base: Job, cwd: str, gone: Callable[["ContextProcess"], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_helper = bool(base.command)
        self._gone = gone
        self._numbers = itertools.count(1)
        self._number = 0
        self._cell: Cell | None = None
        self._left: list[PipeReader] = []
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                try:
                    job = replace(base, cwd=cwd, context=True)
                    self.program = launcher.start(job, [null, null, null, theirs.fileno()])
                finally:
                    os.close(null)
            except BaseException:
                self._sock.close()
                raise
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock, self._receive)
        self.program.ended.add_done_callback(lambda ended: self.close(ended.result()))
        self.program.pid.add_done_callback(lambda pid: self.close(Exit(None)) if pid.exception() else None)

    @property
    def pid(self) -> int | None:
        """Its number, once it is there."""
        pid = self.program.pid
        return pid.result() if pid.done() and not pid.exception() else None

    def give(self, job: Job, fds: list[int]) -> Cell:
        """Give it a cell. The descriptors stay the caller's. Raises OSError: It does not listen."""
        self._number = next(self._numbers)
        self._cell = cell = Cell(self._loop.create_future(), self._loop.create_future())
        job_fd = write_job(job)
        try:
            socket.send_fds(self._sock, [REQUEST.pack(self._number)], [job_fd, *fds])
        finally:
            os.close(job_fd)
        return cell

    def keep_reading(self, pipe: PipeReader) -> None:
        """Read what children of ended cells still write, so that they are not ended by it, and forget it."""
        pipe.take = _forget
        pipe.resume()
        left = [pipe, *(each for each in self._left if each.open)]
        for each in left[_MAX_LEFT:]:
            each.close()
        self._left = left[:_MAX_LEFT]

    def close(self, how: Exit) -> None:
        """Note that it has ended, or is not listened to any more."""
        if self._sock.fileno() < 0:
            return
        cell = self._cell
        if cell is not None and not cell.ended.done():
            for _ in range(_MESSAGES):
                self._receive()
        if cell is not None and not cell.ended.done():
            cell.ended.set_result((how, True))
        self._loop.remove_reader(self._sock)
        self._sock.close()
        for pipe in self._left:
            pipe.close()
        self._gone(self)

    def left_behind(self) -> set[int]:
        """Return the processes that its cells have left, without those below them."""
        if self.pid is None:
            return set()
        children = process_tree.children(self.pid)
        node = self._node(children)
        return children if node is None else (children | process_tree.children(node)) - {node}

    def new_processes(self, before: set[int], since: int) -> set[int]:
        """Return the processes that a cell has started since that time (`process_tree.now`)."""
        if self.pid is None:
            return set()
        table = process_tree.parents()
        own = {self.pid, self._node({pid for pid, parent in table.items() if parent == self.pid})}
        candidates = process_tree.trees([self.pid], table) - own - process_tree.trees(before, table)
        return {pid for pid in candidates if process_tree.alive_since(pid) >= since}

    def _node(self, children: set[int]) -> int | None:
        """Return the Node process of a context of JavaScript: the first that its helper started."""
        if not self._has_helper:
            return None
        return min(children, key=lambda pid: (process_tree.alive_since(pid), pid), default=None)

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
        if cell is None or message.number != self._number:
            return
        if message.kind == Kind.READY and not cell.begun.done():
            cell.begun.set_result(None)
        elif message.kind == Kind.EXITED and not cell.ended.done():
            cpu = message.cpu if math.isfinite(message.cpu) else 0.0
            cell.ended.set_result((Exit(message.status & 0xFF00, max(0.0, cpu), max(0, message.max_rss)), False))


def _forget(_: bytes) -> bool:
    return True
