"""Finds processes, their parents and what they use, and ends trees of them.

What was read may be outdated by the time it is used, so callers look again until nothing is left.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable

_FREEZE_PASSES = 20
_MANY = 16
_PPID_FIELD = 1
_UTIME_FIELD = 11
_START_FIELD = 19
_ENDED = ("Z", "X")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGESIZE")


def parents() -> dict[int, int]:
    """Return each process's parent."""
    pids = filter(str.isdecimal, os.listdir("/proc"))
    return {int(pid): int(fields[_PPID_FIELD]) for pid in pids if (fields := _stat(pid))}


def children(parent: int) -> set[int]:
    """Return the children of a process, zombies included; those that its other threads started may be missing."""
    try:
        # One small file where the kernel has it. Orphans are given to the first thread.
        with open(f"/proc/{parent}/task/{parent}/children") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return {pid for pid, other in parents().items() if other == parent}


def now() -> int:
    """Return the time, as `alive_since` counts it."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def alive_since(pid: int) -> int:
    """Return when a process was started, in ticks of the kernel's clock since its boot; -1 where it has ended."""
    fields = _stat(str(pid))
    return int(fields[_START_FIELD]) if fields and fields[0] not in _ENDED else -1


def trees(roots: Iterable[int], table: dict[int, int]) -> set[int]:
    """Return the roots and all that descends from them."""
    children: dict[int, list[int]] = {}
    for pid, parent in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, ())
    return found


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each of these that is still there."""
    for pid in pids:
        if pid > 1:  # 0 and less mean whole groups
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def end_trees(roots: Iterable[int], *, freeze: bool = False) -> None:
    """Kill the roots and all that descends from them.

    Large trees, and all with `freeze`, are stopped first until nothing new shows up: they may grow meanwhile.
    """
    roots = set(roots)
    found = trees(roots, parents())
    if freeze or len(found) > _MANY:
        send(found, signal.SIGSTOP)
        for _ in range(_FREEZE_PASSES):
            fresh = trees(roots, parents()) - found
            if not fresh:
                break
            send(fresh, signal.SIGSTOP)
            found |= fresh
    send(found, signal.SIGKILL)


def resident(pids: Iterable[int]) -> int:
    """Return the bytes of memory that these processes hold, shared pages counted for each."""
    return _sum(pids, "statm", lambda text: int(text.split()[1]) * _PAGE)


def written(pids: Iterable[int]) -> int:
    """Return the bytes that these processes have written to disks."""
    return _sum(pids, "io", lambda text: int(text.partition("\nwrite_bytes: ")[2].split("\n")[0]))


def _sum(pids: Iterable[int], name: str, read: Callable[[str], int]) -> int:
    total = 0
    for pid in pids:
        # It may be gone, or closed to its own user.
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/{name}") as file:
            total += read(file.read())
    return total


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used so far, in steps of the kernel's clock."""
    fields = _stat(str(pid))
    return (int(fields[_UTIME_FIELD]) + int(fields[_UTIME_FIELD + 1])) / _TICKS if fields else 0.0


def tree_seconds(pid: int) -> float:
    """Return the processor time of a process, all that descends from it, and what of these has ended."""
    members = (_stat(str(each)) for each in trees([pid], parents()))
    return sum(sum(map(int, fields[_UTIME_FIELD : _UTIME_FIELD + 4])) for fields in members if fields) / _TICKS


def exists(pid: int) -> bool:
    """Return whether the process is there, dead or alive."""
    return os.path.exists(f"/proc/{pid}")


def _stat(pid: str) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    # The name in brackets is the program's own choice and may hold anything, brackets too.
    return text.rpartition(")")[2].split()
