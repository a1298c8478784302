"""Notices that memory runs out before the kernel does, so that one run ends with a reason and not the whole sandbox.

In a pod the cgroup has the usage (versions 1 and 2); without one, processes and files in memory are added up.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from sandpod_runner.ipc import process_tree

logger = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
_GVISOR: Final = 96 * MIB
"""What gVisor's own kernel takes, about 35 MiB, and what programs take there until they are ended."""
_UNLIMITED: Final = 2**60
_RATE: Final = 4096 * MIB  # bytes a second that programs may fill at most: how soon the next look must be
_RESIDENT: Final = ("RssAnon", "RssShmem")
_INODE: Final = 1024  # bytes that the kernel keeps for a file in memory, be it empty
_SOONEST: Final = 0.002
_LATEST: Final = 0.25


class Watch:
    """Decides when memory is running out. Its caller looks, and learns when to look again.

    Args:
        limit: Bytes that may be used.
        used: Returns the bytes in use that can't be freed. Below its argument a rough figure that is too high will do.
        kills: Returns how often the kernel has killed for want of memory.
        patience: How many times as long as a look took the next one waits at least, or looking would be all it does.
    """

    def __init__(
        self, limit: int, used: Callable[[int], int], kills: Callable[[], int] = lambda: 0, patience: int = 0
    ) -> None:
        self.limit = limit
        self.kills = kills
        self._used_over = used
        self._patience = patience
        self._threshold = limit - max(limit // 20, 24 * MIB)
        self._line = self._threshold
        self._blind = False

    def rest(self) -> None:
        """Accept what is used now, while nothing runs: the run that would delete files must not be ended for them."""
        used = self.used(self._threshold)
        self._line = max(self._threshold, used + (self.limit - used) // 2)

    def look(self) -> tuple[bool, float]:
        """Return whether too much is used, and in how many seconds to look again."""
        begin = time.monotonic()
        room = self._line - self.used(self._threshold)
        pause = min(max(room / _RATE, _SOONEST), _LATEST)
        return room < 0, max(pause, self._patience * (time.monotonic() - begin))

    def used(self, over: int = 0) -> int:
        """Return the bytes in use that can't be freed; below `over` a rough figure that is too high will do."""
        try:
            return self._used_over(over)
        except (OSError, ValueError) as error:
            if not self._blind:
                logger.warning("the memory in use can't be read: %s", error)
            self._blind = True
            return 0  # the figures may be there at the next look


def find_watch(
    limit: int | None,
    folders: Iterable[str],
    in_memory_anyway: Iterable[str] = (),
    base: str = "/sys/fs/cgroup",
    *,
    packages: str | None = None,
) -> Watch | None:
    """Return a watch over this sandbox's memory, or None where nothing limits it.

    `limit` is that of the settings; a cgroup's own counts if it is no larger. Files of `folders` may be in memory,
    those of `in_memory_anyway` are, though the mounts may not show it. `packages` has a size of its own: only what the
    kernel keeps for each of its files counts.
    """
    version_2 = ("memory.max", "memory.current", "memory.stat", "memory.events")
    version_1 = ("limit_in_bytes", "usage_in_bytes", "stat", "oom_control")
    for prefix, names, cache in (
        (f"{base}/", version_2, ("inactive_file", "active_file", "slab_reclaimable")),
        (f"{base}/memory/memory.", version_1, ("total_inactive_file", "total_active_file")),
    ):
        own, usage, stat, events = (prefix + name for name in names)
        try:
            own_limit = _read(own).strip()
            int(_read(usage))
        except (OSError, ValueError):
            continue  # not this version
        if not os.path.exists(stat):  # only under gVisor
            if limit is not None:
                return gvisor_watch(limit, usage, in_memory_anyway)
        elif own_limit.isdecimal() and int(own_limit) < _UNLIMITED and (limit is None or int(own_limit) <= limit):
            return cgroup_watch(int(own_limit), usage, stat, events, cache)
    return None if limit is None else process_watch(limit, folders, packages)


def cgroup_watch(limit: int, usage: str, stat: str, events: str, cache: tuple[str, ...]) -> Watch:
    """Return a watch by a pod's own control group. What the kernel can drop, the cache of files, is not counted."""

    def used(over: int) -> int:
        rough = int(_read(usage))
        if rough < over:
            return rough
        fields = _fields(stat)
        return rough - sum(fields.get(name, 0) for name in cache)

    def kills() -> int:
        with contextlib.suppress(OSError):
            return _fields(events).get("oom_kill", 0)
        return 0

    return Watch(limit, used, kills)


def gvisor_watch(limit: int, usage: str, folders: Iterable[str], meminfo: str = "/proc/meminfo") -> Watch:
    """Return a watch for gVisor, which counts what a pod's programs use, but calls the node's memory the limit.

    What it maps of files, as of the image's, is the node's, which can drop it. Files in folders that the node keeps in
    memory are under the pod's limit, and so is gVisor's own kernel: neither is in its figures.
    """
    uncounted = _by_device(folder for folder in folders if not in_memory(folder))
    overhead = max(_GVISOR, limit // 8)

    def used(over: int) -> int:
        rough = int(_read(usage)) + sum(map(_folder_bytes, uncounted)) + overhead
        return rough if rough < over else rough - _sizes(meminfo).get("Mapped", 0)

    return Watch(limit, used, patience=1)


def process_watch(limit: int, folders: Iterable[str], packages: str | None = None) -> Watch:
    """Return a watch over the runner, all that comes from it and the files in memory: no cgroup keeps the limit."""
    counted = _by_device(folder for folder in folders if in_memory(folder))
    apart = [packages] if packages is not None and in_memory(packages) else []

    def used(over: int) -> int:
        files = sum(map(_folder_bytes, counted)) + sum(map(_inode_bytes, apart))
        # Forked processes share memory until they write to it: only the second figure counts each page once.
        for file, names in (("status", _RESIDENT), ("smaps_rollup", ("Pss_Anon", "Pss_Shmem"))):
            own, shared = _added(file, names)
            if own + max(shared, files) < over:
                break
        return own + max(shared, files)

    return Watch(limit, used, patience=4)  # where there are many processes a look takes a while


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _fields(path: str) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdecimal()}


def _added(file: str, names: tuple[str, str]) -> tuple[int, int]:
    """Add two fields of a file of each own process up; bytes."""
    sums = [0, 0]
    for pid in process_tree.trees([os.getpid()], process_tree.parents()):
        # A program can close its `smaps_rollup` to its own user, but not its `status`.
        for path, fields in ((file, names), ("status", _RESIDENT)):
            try:
                values = _sizes(f"/proc/{pid}/{path}")
            except OSError:
                continue
            sums = [total + values.get(name, 0) for total, name in zip(sums, fields, strict=True)]
            break
    return sums[0], sums[1]


def _sizes(path: str) -> dict[str, int]:
    """Return the fields of a file that are sizes, bytes."""
    triples = (line.split() for line in _read(path).splitlines())
    return {triple[0].rstrip(":"): int(triple[1]) * 1024 for triple in triples if triple[2:] == ["kB"]}


def _by_device(folders: Iterable[str]) -> list[str]:
    """Return one folder of each file system."""
    return list({os.stat(folder).st_dev: folder for folder in folders}.values())


def _folder_bytes(folder: str) -> int:
    info = os.statvfs(folder)
    return (info.f_blocks - info.f_bfree) * info.f_frsize + _inode_bytes(folder)


def _inode_bytes(folder: str) -> int:
    info = os.statvfs(folder)
    return (info.f_files - info.f_ffree) * _INODE


def in_memory(folder: str) -> bool:
    """Return whether a folder's files are in memory; False where that can't be found out."""
    try:
        device = os.stat(folder).st_dev
        mounts = _read("/proc/self/mountinfo").splitlines()
    except OSError:
        return False
    name = f"{os.major(device)}:{os.minor(device)}"
    return any(f" {name} " in mount and " - tmpfs " in mount for mount in mounts)
