"""The few switches of kernel and C library that the standard library has no function for. It decides nothing."""

import ctypes
import os
import platform
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_SECCOMP = {"x86_64": 317, "aarch64": 277}  # which has no function in the C library
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_NEW_LISTENER = 1 << 3
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_M_ARENA_MAX = -8

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    _checked(_libc.prctl(option, value, 0, 0, 0))


def _checked(answer: int) -> int:
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return answer


def share_heap() -> None:
    """Have all threads of this process use one heap: each one's own keeps up to megabytes that nothing uses."""
    mallopt = getattr(_libc, "mallopt", None)  # not in every C library
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def set_readable(readable: bool) -> None:  # noqa: FBT001 - the one thing it is about
    """Let other processes of the same user read and trace this one, or not. `exec` makes it readable again."""
    _prctl(_PR_SET_DUMPABLE, int(readable))


def adopt_orphans() -> None:
    """Make this process the parent of all its descendants that lose theirs. It stays so after `exec`."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_rights() -> None:
    """Make set-user-id programs powerless, for this process and all that come from it."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def filter_calls(program: bytes) -> None:
    """Put a filter (classic BPF) on the system calls of this process and of all that come from it."""
    wanted = _Filter(len(program) // 8, program)
    _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(wanted), 0, 0))


def watch_calls(program: bytes) -> int:
    """Put such a filter there, and return the descriptor on which it asks; it is closed at `exec`."""
    wanted = _Filter(len(program) // 8, program)
    number = _SECCOMP[platform.machine()]
    return _checked(_libc.syscall(number, _SECCOMP_SET_MODE_FILTER, _SECCOMP_NEW_LISTENER, ctypes.byref(wanted)))


def end_with_parent() -> None:
    """Kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
