"""What a freshly forked process does to become a program: its streams, limits, signals and environment.

Python code runs in this very process; everything else replaces it by `exec`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
from typing import NoReturn

from sandpod_runner.ipc import syscalls
from sandpod_runner.ipc.descriptors import move_away, place
from sandpod_runner.ipc.jobs import CHANNEL, MAX_FDS, REQUEST, Job, read_job
from sandpod_runner.python import program
from sandpod_runner.python.display_channel import Channel

_CANNOT_START = 126
_NOT_FOUND = 127


def become(given: list[int] | socket.socket) -> NoReturn:
    """Become a program: the first descriptor is its job, the others become its 0, 1, 2 and so on.

    With a socket, get ready and wait until the descriptors come through it.
    """
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
