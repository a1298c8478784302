"""A context of JavaScript: starts its Node process and gives it each cell, with the descriptors that the runner sends.

Node can't receive descriptors, so they are kept open here until it has opened them by this process's entries under
`/proc`. `context.cjs` answers the runner itself. Both belong to the program: nobody trusts them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Final, NoReturn

from sandpod_runner.ipc import syscalls
from sandpod_runner.ipc.descriptors import move_away
from sandpod_runner.ipc.jobs import MAX_FDS, REQUEST, Job, read_job

_HELPER: Final = 3
_RUNNER: Final = 4
_ANSWERS: Final = 5
_ENTERED, _LEAVING, _LEFT = b"{}!"  # as in context.cjs


def serve(job: Job, fd: int, become: Callable[[Job], NoReturn]) -> NoReturn:
    """Pass cells on until the runner closes its end of the socket or Node ends, and end as that ended.

    `job` is Node's, `fd` the socket to the runner; `become` replaces the process by a job's command.
    """
    # Open to the end of this process: the runner kills what has closed it, and would not see how it ends.
    runner = socket.socket(fileno=fd)
    ours, theirs = socket.socketpair()
    answers, answering = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        syscalls.end_with_parent()
        # Out of the way first: one may be at the number that the other one gets.
        fds = [move_away(os.dup(each)) for each in (theirs.fileno(), fd, answers)]
        for number, each in zip((_HELPER, _RUNNER, _ANSWERS), fds):
            os.dup2(each, number)
        become(job)
    theirs.close()
    os.close(answers)
    os._exit(_Helper(pid, runner, ours, answering).run())


class _Helper:
    def __init__(self, pid: int, runner: socket.socket, node: socket.socket, answers: int) -> None:
        self._pid = pid
        self._runner = runner
        self._node = node
        self._answers = answers
        node.setblocking(False)
        self._unsent = b""
        self._poll = select.poll()
        self._held: list[int] = []
        self._guarded = False  # Node takes a signal, until it is answered that it may leave
        self._interrupted = False  # this cell
        self._signalled = False  # by a signal

    def run(self) -> int:
        wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        for fd in (wake, self._runner.fileno(), self._node.fileno()):
            self._poll.register(fd, select.POLLIN)
        while True:
            ready = dict(self._poll.poll())
            # An interrupt is of the cell that runs, so it goes on before the next cell does.
            if wake in ready and signal.SIGINT in os.read(wake, 4096):
                self._interrupt()
            status = self._reap()
            if status is not None:
                return status
            events = ready.get(self._node.fileno(), 0)
            if events & select.POLLOUT:
                self._send()
            if events & ~select.POLLOUT and not self._hear():
                self._unsent = b""
                self._poll.unregister(self._node)  # its end follows
            if self._runner.fileno() in ready and not self._pass_on():
                return 0  # and Node ends with this process

    def _interrupt(self) -> None:
        if self._interrupted:
            return
        self._interrupted = True
        if self._guarded:
            self._signal()
        else:
            self._unsent += b"null\n"
            self._send()

    def _signal(self) -> None:
        self._signalled = True
        os.kill(self._pid, signal.SIGINT)

    def _pass_on(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._runner, REQUEST.size, MAX_FDS)
        if not data:
            return False
        (number,) = REQUEST.unpack(data)
        self._let_go()
        cell, self._held = read_job(fds[0]), fds[1:]
        code, base = cell.code.decode("utf-8", "replace"), f"/proc/{os.getpid()}/fd/"
        what = {"code": code, "args": cell.args, "env": cell.env, "cwd": cell.cwd, "number": number}
        self._interrupted = self._signalled = False
        self._unsent += json.dumps({**what, "base": base, "fds": self._held}).encode() + b"\n"
        self._send()
        return True

    def _send(self) -> None:
        """Send what Node takes: it may be busy, and must be interruptible meanwhile."""
        try:
            self._unsent = self._unsent[self._node.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # Node is about to end
            self._unsent = b""
            self._let_go()
        with contextlib.suppress(OSError):  # it has ended, and is not looked at any more
            self._poll.modify(self._node, select.POLLIN | (select.POLLOUT if self._unsent else 0))

    def _hear(self) -> bool:
        """Act on what Node says, and return whether it is still there."""
        try:
            data = self._node.recv(64)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        for word in data or b"\n":
            if word == _ENTERED:
                self._guarded = True
                if self._interrupted and not self._signalled:
                    self._signal()
            elif word in {_LEAVING, _LEFT}:
                self._guarded = False
                answer = b"!" if word == _LEFT else b"x" if self._signalled else b"."
                with contextlib.suppress(OSError):  # it has ended
                    os.write(self._answers, answer)
            else:  # it has opened the cell's descriptors
                self._let_go()
        return bool(data)

    def _let_go(self) -> None:
        for fd in self._held:
            os.close(fd)
        self._held = []

    def _reap(self) -> int | None:
        """Reap what has ended, orphans of cells too, and return Node's exit code once it is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == 0:
                return None
            if pid == self._pid:
                return _end_alike(status)


def _end_alike(status: int) -> int:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return os.waitstatus_to_exitcode(status) & 0xFF
