"""Has the kernel ask the runner about each connection that a program wants to make."""

from __future__ import annotations

import platform
import sys
from typing import Final

from sandpod_runner.ipc import bpf, syscalls

_CONNECT: Final = {"x86_64": 42, "aarch64": 203}
_FIRST_KERNEL: Final = (5, 5)
"""The first that can be answered with "go on" (SECCOMP_USER_NOTIF_FLAG_CONTINUE). gVisor calls itself 4.4."""


def watch_connects() -> int | None:
    """Return the descriptor on which the kernel asks, for this process and its descendants; None where it can't."""
    machine = platform.machine()
    release = platform.release().split(".")[:2]
    if machine not in _CONNECT or not all(part.isdecimal() for part in release):
        return None
    if tuple(map(int, release)) < _FIRST_KERNEL:
        return None
    try:
        return syscalls.watch_calls(assemble(machine))
    except OSError as error:
        sys.stderr.write(f"connections are refused by policies alone: this kernel has no listener for them: {error}\n")
        return None


def assemble(machine: str) -> bytes:
    """Return the filter as the kernel takes it."""
    parts = [
        *bpf.head(machine),
        bpf.one(bpf.EQUAL, _CONNECT[machine], no=1),
        bpf.one(bpf.RETURN, bpf.NOTIFY),
        bpf.one(bpf.RETURN, bpf.ALLOW),
    ]
    return b"".join(parts)
