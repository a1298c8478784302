"""The process that all programs are forked from: it has imported Python's heavy modules once, so that runs need not.

It serves the runner over one socket: a request comes with the program's descriptors, and it answers which process that
became and, later, how that ended. It has one thread and runs no user code itself. A forked process becomes a program:
Python code runs in this very process, and everything else replaces it by `exec`. One is kept waiting for its program:
forking takes longer than a small program does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys
from importlib import import_module
from typing import Final, NoReturn

from sandpod_runner.ipc import syscalls
from sandpod_runner.ipc.descriptors import close_others, move_away, place
from sandpod_runner.ipc.jobs import CHANNEL, MAX_FDS, REQUEST, Job, Kind, Message, read_job
from sandpod_runner.python import program
from sandpod_runner.python.display_channel import Channel
from sandpod_runner.zygote import filters, hooks

_REFILL_MS: Final = 20
"""Pause after which a new process is made to wait, where no program's end came first: forking would slow programs."""
_CANNOT_START: Final = 126
_NOT_FOUND: Final = 127


def main(fd: int, closed: bool, modules: list[str]) -> NoReturn:  # noqa: FBT001 - comes by a command line
    """Import the modules, then serve until the runner closes its end.

    `closed` says that programs have no network, so that the runner answers for it. A module that can't be imported is
    reported on standard error and left out.
    """
    close_others(fd)
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
        with sock, contextlib.suppress(OSError):  # it was killed
            if not filters.is_changed(pid):  # a changed one ends with its socket
                os.kill(pid, signal.SIGCONT)  # a program may have stopped it
                socket.send_fds(sock, [data], fds)
                return pid
        return None

    def _fork(self, given: list[int] | socket.socket, *own: socket.socket) -> int:
        """Fork a process that becomes a program, without what is the zygote's own."""
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for sock in (self._sock, *own):
                sock.close()
            os.close(self._wake)
            os.close(self._woken)
            become(given)
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


def become(given: list[int] | socket.socket) -> NoReturn:
    """Become the program whose job is the first descriptor given, or the first to come through the socket given."""
    status = _CANNOT_START
    try:
        _detach()
        program.reseed()
        status = _run(_wait(given) if isinstance(given, socket.socket) else given)
    except BaseException as error:  # noqa: BLE001 - nothing may get back into the zygote's loop
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        os.write(2, f"The program could not be started: {why}.\n".encode(errors="replace"))
    finally:
        os._exit(status)


def _wait(sock: socket.socket) -> list[int]:
    program.rehearse()
    with sock:
        data, fds, _, _ = socket.recv_fds(sock, REQUEST.size, MAX_FDS)
    if not data:
        os._exit(0)  # the zygote has ended
    return fds


def _run(fds: list[int]) -> int:
    job = read_job(fds[0])
    if job.command and not job.context:
        place(fds[1:])
        if job.terminal:
            _take_terminal()
        _confine(job)
        _replace(job)
    place(fds[1:CHANNEL])
    channel = move_away(fds[CHANNEL])
    _confine(job)
    if job.context and job.command:
        from sandpod_runner.javascript import context_helper  # noqa: PLC0415 - for contexts alone

        context_helper.serve(job, channel, _replace)
    if job.context:
        from sandpod_runner.python import context  # noqa: PLC0415 - as above

        return context.serve(job, channel)
    shown = Channel.current = Channel(channel, job.cwd)
    before, _ = program.usage()
    status = program.run(job)
    if status >= 0 and _is_alone():
        # Taking a process apart takes longer than many a program does, and nothing of interest comes of it.
        cpu, max_rss = program.usage()
        shown.done(status, cpu - before, max_rss)
    return status


def _take_terminal() -> None:
    """Make descriptor 0 the terminal that controls this session, whose signals do what they usually do."""
    import fcntl  # noqa: PLC0415 - for terminals alone
    import termios  # noqa: PLC0415 - as above

    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTSTP", "SIGTTIN", "SIGTTOU"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _is_alone() -> bool:
    """Return whether only this thread of the program goes on: no other one and, as orphans come here, no child."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return len(sys._current_frames()) == 1  # noqa: SLF001 - counts threads that `threading` does not know too
    return False


def _detach() -> None:
    os.setsid()
    syscalls.set_readable(True)
    syscalls.adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # When memory runs out the kernel takes a program and not the runner. Not every sandbox kernel has this; the runner
    # watches memory itself.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(b"1000")


def _confine(job: Job) -> None:
    for kind, value in job.rlimits:
        _, hard = resource.getrlimit(kind)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))
    os.umask(0o022)
    os.chdir(job.cwd)


def _replace(job: Job) -> NoReturn:
    # Python ignores this one for itself. It ignores SIGXFSZ too, and that stays: a program that writes a file over the
    # limit gets "File too large" and is not killed without a word.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    command = job.command
    try:
        os.execve(command[0], command, job.env)  # noqa: S606 - no shell is between, unless the program is one
    except FileNotFoundError:
        sys.stderr.write(f"{command[0]}: not found\n")
        sys.stderr.flush()
        os._exit(_NOT_FOUND)
