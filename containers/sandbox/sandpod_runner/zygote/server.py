"""The process that all programs are forked from: it has imported Python's heavy modules once, so that runs need not.

It serves the runner over one socket: a request comes with the program's descriptors, and it answers which process that
became and, later, how that ended. It has one thread, runs no user code itself, and gives each forked process to `child`
at once. One such process is kept waiting for its program: forking takes longer than a small program does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from importlib import import_module
from typing import Final, NoReturn

from sandpod_runner.ipc import syscalls
from sandpod_runner.ipc.jobs import MAX_FDS, REQUEST, Kind, Message
from sandpod_runner.zygote import child, filters, hooks

_REFILL_MS: Final = 20
"""Pause after which a new process is made to wait, where no program's end came first: forking would slow programs."""


def main(fd: int, closed: bool, modules: list[str]) -> NoReturn:  # noqa: FBT001 - comes by a command line
    """Import the modules, then serve until the runner closes its end.

    `closed` says that programs have no network, so that the runner answers for it. A module that can't be imported is
    reported on standard error and left out.
    """
    syscalls.set_readable(False)
    syscalls.end_with_parent()
    syscalls.forbid_new_rights()
    filters.protect([os.getppid(), os.getpid()])
    os.chdir("/")
    sock = socket.socket(fileno=fd)
    if closed and (asked := filters.watch_connects()) is not None:
        # Before anything is forked: no program may have it.
        socket.send_fds(sock, [Message(Kind.CONNECTS).pack()], [asked])
        os.close(asked)
    zygote = _Zygote(sock)
    hooks.notice_drawing()
    hooks.find_added_packages()
    hooks.name_own_user()
    for name in modules:
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - a template may name anything, and a module may raise anything
            sys.stderr.write(f"{name} was not imported beforehand: {type(error).__name__}: {error}\n")
    sys.stderr.flush()
    zygote.serve()
    os._exit(0)


class _Zygote:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The forked process that waits for its program, and the socket to it.
        self._waiting: tuple[int, socket.socket] | None = None
        self._refill_due = False

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        # Threads of numeric libraries end at the first fork: better now than in somebody's run.
        if os.fork() == 0:
            os._exit(0)
        # What is there now is never collected: it would only be copied for each program.
        gc.collect()
        gc.freeze()
        self._refill()
        self._report(Message(Kind.READY))
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            events = dict(poll.poll(_REFILL_MS if self._refill_due else None))
            if self._wake in events:
                os.read(self._wake, 4096)
                self._reap()
            if self._sock.fileno() in events:
                if not self._take():
                    return
            elif self._refill_due:
                self._refill()

    def _take(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._sock, REQUEST.size, MAX_FDS)
        if not data:
            return False
        (number,) = REQUEST.unpack(data)
        try:
            pid = self._hand_over(data, fds) or self._fork(fds)
        except OSError as error:
            self._report(Message(Kind.FAILED, number, status=error.errno or 0))
        else:
            self._report(Message(Kind.FORKED, number, pid))
        for fd in fds:
            os.close(fd)
        return True

    def _hand_over(self, data: bytes, fds: list[int]) -> int | None:
        """Give a program to the process that waits for one, and return that process."""
        waiting, self._waiting = self._waiting, None
        self._refill_due = True
        if waiting is None:
            return None
        pid, sock = waiting
        with sock:
            if filters.is_changed(pid):
                return None  # it ends
            try:
                os.kill(pid, signal.SIGCONT)  # a program may have stopped it
                socket.send_fds(sock, [data], fds)
            except OSError:
                return None  # it was killed
        return pid

    def _fork(self, given: list[int] | socket.socket, *own: socket.socket) -> int:
        """Fork a process that becomes a program, without what is the zygote's own."""
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for sock in (self._sock, *own):
                sock.close()
            os.close(self._wake)
            os.close(self._woken)
            child.become(given)
        return pid

    def _refill(self) -> None:
        # Only once for each program: a process that dies while it waits is not made again and again.
        self._refill_due = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._waiting = self._fork(theirs, ours), ours
            except OSError:
                ours.close()  # too many processes: the next program's own fork reports it

    def _reap(self) -> None:
        while True:
            try:
                # Looked at first and reaped after: until then the number can't be another group's.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            with contextlib.suppress(OSError):  # nothing of its group is left, which is how most programs end
                os.killpg(ended.si_pid, signal.SIGKILL)
            pid, status, usage = os.wait4(ended.si_pid, 0)
            if self._waiting is not None and self._waiting[0] == pid:
                self._waiting[1].close()
                self._waiting = None
            cpu = usage.ru_utime + usage.ru_stime
            self._report(Message(Kind.EXITED, 0, pid, status, cpu, usage.ru_maxrss * 1024))

    def _report(self, message: Message) -> None:
        try:
            self._sock.send(message.pack())
        except OSError:
            os._exit(0)  # the runner is gone, and with it the reason to be here
