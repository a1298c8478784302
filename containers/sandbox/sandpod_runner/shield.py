"""Keeps programs from changing the runner's limits and priority, which the kernel lets every process of its user do.

Called by `zygote.py`, whose filter all programs inherit. Reading and tracing are prevented by `kernel.set_readable`,
and signals do nothing to a PID 1; what is left are the calls that take another process's number (`man 2 prlimit`).
"""

import contextlib
import errno
import os
import platform
import resource
from collections.abc import Iterable
from struct import Struct
from typing import Final

from sandpod_runner import kernel

_INSTRUCTION: Final = Struct("=HBBI")
# The opcodes of classic BPF that are used here (linux/bpf_common.h).
_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K

# Offsets in struct seccomp_data; of an argument the low half, since all that matter are ints.
_NUMBER: Final = 0
_ARCH: Final = 4
_FIRST, _SECOND = 16, 24

_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000

_AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_RLIMITS: Final = 16
_X32_BIT: Final = 0x40000000
_WHOLE_USER: Final = {"setpriority": 2, "ioprio_set": 3}
"""The first argument with which these mean all processes of the user."""

# name: (number on x86_64, on aarch64, where the process is named)
_CALLS: Final[dict[str, tuple[int, int, int]]] = {
    "prlimit64": (302, 261, _FIRST),
    "sched_setaffinity": (203, 122, _FIRST),
    "sched_setattr": (314, 274, _FIRST),
    "sched_setparam": (142, 118, _FIRST),
    "sched_setscheduler": (144, 119, _FIRST),
    "migrate_pages": (256, 238, _FIRST),
    "setpriority": (141, 140, _SECOND),
    "ioprio_set": (251, 30, _SECOND),
}


def install(pids: Iterable[int]) -> None:
    """Refuse, for this process and all that come from it, what would change these processes.

    Where the kernel has no filters, or the processor is not known here, nothing is refused.
    """
    machine = platform.machine()
    if machine in _AUDIT_ARCH:
        with contextlib.suppress(OSError):
            kernel.filter_calls(assemble(machine, tuple(pids)))


def assemble(machine: str, pids: tuple[int, ...]) -> bytes:
    """Return the filter as the kernel takes it.

    Args:
        machine: The processor, as `platform.machine` names it.
        pids: The processes to protect.
    """
    column = list(_AUDIT_ARCH).index(machine)
    # Programs for other processors number their calls differently, and could go around the list.
    parts = [_one(_LOAD, _ARCH), _one(_EQUAL, _AUDIT_ARCH[machine], yes=1), _refuse(errno.ENOSYS), _one(_LOAD, _NUMBER)]
    if machine == "x86_64":
        parts += [_one(_AT_LEAST, _X32_BIT, no=1), _refuse(errno.ENOSYS)]
    for name, call in _CALLS.items():
        body = _body(name, call[2], pids)
        parts += [_one(_EQUAL, call[column], no=len(body)), *body]
    return b"".join([*parts, _one(_RETURN, _ALLOW)])


def _body(name: str, place: int, pids: tuple[int, ...]) -> list[bytes]:
    body: list[bytes] = []
    if name in _WHOLE_USER:
        body += [_one(_LOAD, _FIRST), _one(_EQUAL, _WHOLE_USER[name], no=1), _refuse(errno.EPERM)]
    body.append(_one(_LOAD, place))
    for pid in pids:
        body += [_one(_EQUAL, pid, no=1), _refuse(errno.EPERM)]
    return [*body, _one(_RETURN, _ALLOW)]


def _one(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return _INSTRUCTION.pack(code, yes, no, value)


def _refuse(error: int) -> bytes:
    return _one(_RETURN, _ERRNO | error)


def is_changed(pid: int) -> bool:
    """Tell whether limits, priority or processors of a process forked from this one are not what they were."""
    with contextlib.suppress(OSError):
        return _state(pid) != _state(0)
    return True


def _state(pid: int) -> tuple[object, ...]:
    limits = [resource.prlimit(pid, kind) for kind in range(_RLIMITS)]
    return (*limits, os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid), os.sched_getaffinity(pid))
