"""Notices when a workspace on a disk grows over its size, which no file system prevents.

A workspace in memory has its own size limit. One on the node's disk has none: the kubelet looks now and then and evicts
the whole pod, and the disk may be full by then.
"""

import contextlib
import errno
import itertools
import os
import stat
import threading
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from sandpod_runner.files.workspace import Walk
from sandpod_runner.limits.memory import in_memory

_BLOCK: Final = 512
_LEAST: Final = 1024  # bytes that a file counts at least: its name and its inode take room, be it empty
_RATE: Final = 1024 * 1024 * 1024  # bytes a second that programs may write at most: how soon the next look must be
_SOONEST: Final = 0.1
_LATEST: Final = 2.0
_SHARE: Final = 10  # A look may take this part of the time: where there are many files it takes a while


class DiskWatch:
    """Adds up the bytes that a folder holds, of which `limit` are allowed."""

    def __init__(self, folder: str, limit: int) -> None:
        self._folder = os.path.realpath(folder)
        self._device = os.stat(folder).st_dev
        self.limit = limit
        self._room = 0
        self._lock = threading.Lock()  # uploads come in threads

    def look(self) -> None:
        """Find out how much all uploads together may still write."""
        room = max(0, self.limit - self.used())
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
        total = 0
        seen: set[int] = set()
        files = (entry.info for entry in Walk(self._folder, device=self._device))
        for info in itertools.chain(files, *map(self._nameless, pids)):
            if info.st_nlink != 1 or not stat.S_ISREG(info.st_mode):
                if info.st_ino in seen:
                    continue
                seen.add(info.st_ino)
            total += max(info.st_blocks * _BLOCK, _LEAST)
        return total

    def pause(self, used: int, cost: float) -> float:
        """Return in how many seconds to look again, after a look that found `used` bytes and took `cost` seconds."""
        return max(min(max((self.limit - used) / _RATE, _SOONEST), _LATEST), _SHARE * cost)

    def _nameless(self, pid: int) -> Iterator[os.stat_result]:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    info = entry.stat()
                    if info.st_nlink == 0 and info.st_dev == self._device:
                        yield info


def find_disk_watch(folder: str, limit: int | None, in_memory_anyway: Collection[str] = ()) -> DiskWatch | None:
    """Return a watch over the workspace, or None where its file system keeps the limit or there is none.

    The files of `in_memory_anyway` are in memory though the mounts may not show it, as under gVisor.
    """
    return None if limit is None or folder in in_memory_anyway or in_memory(folder) else DiskWatch(folder, limit)
