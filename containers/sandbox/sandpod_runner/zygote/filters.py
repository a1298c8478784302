"""The filters on system calls that the zygote puts on itself, and that all programs inherit.

One keeps programs from changing the runner's limits and priority, which the kernel lets every process of its user do.
Reading and tracing are prevented by `syscalls.set_readable`, and signals do nothing to a PID 1; what is left are the
calls that take another process's number (`man 2 prlimit`). It also refuses to take a disk's space without writing,
which no watch would see in time, nor whose it is. The other has the kernel ask the runner about connections.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import resource
import sys
from collections.abc import Iterable
from typing import Final

from sandpod_runner.ipc import bpf, syscalls

FIRST, SECOND, _ = bpf.ARGUMENTS
_RLIMITS: Final = 16

# The number on x86_64 and on aarch64, which argument names the process, and the first one of calls that can mean all
# processes of the user.
_CALLS: Final[dict[str, tuple[int, int, int, int | None]]] = {
    "prlimit64": (302, 261, FIRST, None),
    "sched_setaffinity": (203, 122, FIRST, None),
    "sched_setattr": (314, 274, FIRST, None),
    "sched_setparam": (142, 118, FIRST, None),
    "sched_setscheduler": (144, 119, FIRST, None),
    "migrate_pages": (256, 238, FIRST, None),
    "setpriority": (141, 140, SECOND, 2),
    "ioprio_set": (251, 30, SECOND, 3),
}

_PUNCH_HOLE: Final = 2  # of fallocate: it frees space
_SECOND: Final = bpf.one(bpf.LOAD, SECOND)
# The numbers on x86_64 and on aarch64, and what is refused. C libraries write instead where there is no fallocate.
_ALLOCATING: Final[tuple[tuple[tuple[int, int], list[bytes]], ...]] = (
    # fallocate
    ((285, 47), [_SECOND, bpf.one(bpf.ANY_BIT, _PUNCH_HOLE, yes=1), bpf.refuse(errno.EOPNOTSUPP)]),
    # ioctl: FS_IOC_RESVSP, FS_IOC_RESVSP64 and FS_IOC_ZERO_RANGE, its older forms
    (
        (16, 29),
        [
            _SECOND,
            bpf.one(bpf.EQUAL, 0x40305828, yes=2),
            bpf.one(bpf.EQUAL, 0x4030582A, yes=1),
            bpf.one(bpf.EQUAL, 0x40305839, no=1),
            bpf.refuse(errno.ENOTTY),
        ],
    ),
    # io_uring_setup: what it does passes by filters
    ((425, 425), [bpf.refuse(errno.EPERM)]),
)

_CONNECT: Final = {"x86_64": 42, "aarch64": 203}
_FIRST_KERNEL: Final = (5, 5)
"""The first that can be answered with "go on" (SECCOMP_USER_NOTIF_FLAG_CONTINUE). gVisor calls itself 4.4."""


def protect(pids: Iterable[int]) -> None:
    """Refuse what would change these processes, where the kernel has filters and the processor is known here."""
    machine = platform.machine()
    if machine in bpf.AUDIT_ARCH:
        try:
            syscalls.filter_calls(protection(machine, tuple(pids)))
        except OSError as error:
            sys.stderr.write(f"programs may change the runner's limits: this kernel refuses the filter: {error}\n")


def protection(machine: str, pids: tuple[int, ...]) -> bytes:
    """Return the filter that protects these processes and the disk, as the kernel takes it."""
    column = list(bpf.AUDIT_ARCH).index(machine)
    refusal, allow = bpf.refuse(errno.EPERM), bpf.one(bpf.RETURN, bpf.ALLOW)
    parts = bpf.head(machine)
    refused = [*_ALLOCATING]
    for x86_64, aarch64, place, whole_user in _CALLS.values():
        body = [bpf.one(bpf.LOAD, place)]
        if whole_user is not None:
            body = [bpf.one(bpf.LOAD, FIRST), bpf.one(bpf.EQUAL, whole_user, no=1), refusal, *body]
        for pid in pids:
            body += [bpf.one(bpf.EQUAL, pid, no=1), refusal]
        refused.append(((x86_64, aarch64), body))
    for numbers, body in refused:
        parts += [bpf.one(bpf.EQUAL, numbers[column], no=len(body) + 1), *body, allow]
    return b"".join([*parts, allow])


def watch_connects() -> int | None:
    """Return the descriptor on which the kernel asks about connections that programs want to make; None if it can't."""
    machine, release = platform.machine(), re.match(r"(\d+)\.(\d+)", platform.release())
    if machine not in _CONNECT or release is None or tuple(map(int, release.groups())) < _FIRST_KERNEL:
        return None
    try:
        return syscalls.watch_calls(connection_watch(machine))
    except OSError as error:
        sys.stderr.write(f"connections are refused by policies alone: this kernel has no listener for them: {error}\n")
        return None


def connection_watch(machine: str) -> bytes:
    """Return the filter that has the kernel ask about connections, as the kernel takes it."""
    ask = [bpf.one(bpf.EQUAL, _CONNECT[machine], no=1), bpf.one(bpf.RETURN, bpf.NOTIFY)]
    return b"".join([*bpf.head(machine), *ask, bpf.one(bpf.RETURN, bpf.ALLOW)])


def is_changed(pid: int) -> bool:
    """Return whether limits, priority or processors of a process forked from this one are not what they were."""
    with contextlib.suppress(OSError):
        return _state(pid) != _state(0)
    return True


def _state(pid: int) -> tuple[object, ...]:
    limits = [resource.prlimit(pid, kind) for kind in range(_RLIMITS)]
    return (*limits, os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid), os.sched_getaffinity(pid))
