"""Notices when the workspace or the room for packages grows over its size on a disk, which no file system prevents.

A folder in memory has its own size limit. One on the node's disk has none: the kubelet looks now and then and evicts
the whole pod, and the disk may be full by then.
"""

import contextlib
import errno
import itertools
import os
import stat
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from sandpod_runner.files.workspace import Walk
from sandpod_runner.limits.memory import MIB, in_memory

_BLOCK: Final = 512
_LEAST: Final = 1024  # bytes that a file counts at least: its name and its inode take room, be it empty
_RATE: Final = 1024 * 1024 * 1024  # bytes a second that programs may write at most: how soon the next look must be
_SOONEST: Final = 0.1
_LATEST: Final = 2.0
_SHARE: Final = 10  # A look may take this part of the time: where there are many files it takes a while
_LONGEST: Final = 10.0  # seconds that a folder goes uncounted because its file system has lost little
_SELDOM_SHARE: Final = 50
_WORKSPACE: Final = "the workspace's {} MiB"
_PACKAGES: Final = "the {} MiB that ~/.local may hold"


class DiskWatch:
    """Adds up the bytes that a folder holds, of which `limit` are allowed.

    Files without a name below `beside`, perhaps on the same file system, are not this folder's. That of `packages`,
    which programs rarely write to, is counted only once its file system has lost what was left here.
    """

    def __init__(self, folder: str, limit: int, beside: str | None = None, *, packages: bool = False) -> None:
        self._folder = os.path.realpath(folder)
        self._device = os.stat(folder).st_dev
        self._beside = None if beside is None else f"{os.path.realpath(beside)}/"
        self._seldom = packages
        self._floor = 0  # what is free on the file system if this folder has grown to its limit
        self._steady_until = 0.0
        self.limit = limit
        self.whole = (_PACKAGES if packages else _WORKSPACE).format(limit // MIB)
        self.due = 0.0  # when to look next, by the monotonic clock
        self._room = 0
        self._lock = threading.Lock()  # uploads come in threads

    def look(self) -> None:
        """Find out how much all uploads together may still write."""
        room = max(0, self.limit - self.used())
        self.due = 0.0
        with self._lock:
            self._room = room

    def take(self, size: int) -> None:
        """Take bytes from what uploads may still write. Raises OSError: EDQUOT: There are not enough."""
        with self._lock:
            if size > self._room:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
            self._room -= size

    def used(self, pids: Iterable[int] = ()) -> int:
        """Return the bytes in use, files without a name that these processes have open included."""
        total, begin, free = 0, time.monotonic(), self._free_bytes()
        seen: set[int] = set()
        files = (entry.info for entry in Walk(self._folder, device=self._device))
        for info in itertools.chain(files, *map(self._nameless, pids)):
            if info.st_nlink != 1 or not stat.S_ISREG(info.st_mode):
                if info.st_ino in seen:
                    continue
                seen.add(info.st_ino)
            total += max(info.st_blocks * _BLOCK, _LEAST)
        end = time.monotonic()
        self._floor = free - (self.limit - total)
        self._steady_until = end + max(_LONGEST, _SELDOM_SHARE * (end - begin)) if total < self.limit else 0.0
        return total

    def is_steady(self) -> bool:
        """Return whether it need not be counted again yet: too little was written to its file system by all."""
        return self._seldom and time.monotonic() < self._steady_until and self._free_bytes() > self._floor

    def pause(self, used: int, cost: float) -> float:
        """Return in how many seconds to look again, after a look that found `used` bytes and took `cost` seconds."""
        return max(min(max((self.limit - used) / _RATE, _SOONEST), _LATEST), _SHARE * cost)

    def _free_bytes(self) -> int:
        info = os.statvfs(self._folder)
        return info.f_bfree * info.f_frsize

    def _nameless(self, pid: int) -> Iterator[os.stat_result]:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    info = entry.stat()
                    if info.st_nlink == 0 and info.st_dev == self._device and not self._is_beside(entry.path):
                        yield info

    def _is_beside(self, link: str) -> bool:
        return self._beside is not None and os.readlink(link).startswith(self._beside)


def find_disk_watch(
    folder: str,
    limit: int | None,
    in_memory_anyway: Collection[str] = (),
    beside: str | None = None,
    *,
    packages: bool = False,
) -> DiskWatch | None:
    """Return a watch over a folder, or None where its file system keeps the limit or there is none.

    The files of `in_memory_anyway` are in memory though the mounts may not show it, as under gVisor.
    """
    if limit is None or folder in in_memory_anyway or in_memory(folder):
        return None
    return DiskWatch(folder, limit, beside, packages=packages)
