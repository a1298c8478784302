"""What a sandbox uses now: processor time, memory, and its workspace's room.

In a pod the cgroup has the processor time (versions 1 and 2); without one, that of the runner and all that comes from
it is added up.
"""

import contextlib
import os
from typing import Any, Final

from sandpod_runner.ipc import process_tree
from sandpod_runner.limits.memory import Watch

_MICRO: Final = 1_000_000
_NANO: Final = 1_000_000_000


def usage(memory: Watch | None, folder: str, base: str = "/sys/fs/cgroup") -> dict[str, Any]:
    """Return seconds of processor time since the start, and bytes; those of memory are null where nothing limits it."""
    info = os.statvfs(folder)
    return {
        "cpu": processor_seconds(base),
        "memory": memory.used() if memory is not None else None,
        "memory_limit": memory.limit if memory is not None else None,
        "disk": (info.f_blocks - info.f_bfree) * info.f_frsize,
        "disk_limit": info.f_blocks * info.f_frsize,
    }


def processor_seconds(base: str) -> float:
    """Return the processor time of all that runs, or ran, in the sandbox."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        if os.path.exists(f"{base}/memory.max"):  # else it is the whole machine's
            with open(f"{base}/cpu.stat") as file:
                return int(file.read().partition("usage_usec ")[2].split()[0]) / _MICRO
    with contextlib.suppress(OSError, ValueError), open(f"{base}/cpuacct/cpuacct.usage") as file:
        return int(file.read()) / _NANO
    return process_tree.tree_seconds(os.getpid())
