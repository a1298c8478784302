"""Artifacts: the files that runs create or change, found by their change times, which no program can set.

Their clock has coarse steps: what changed in the very step in which a run begins is known before.
"""

import contextlib
import itertools
import os
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sandpod_runner.files.operations import Listing
from sandpod_runner.files.workspace import Walk
from sandpod_runner.limits.threads import in_thread
from sandpod_runner.protocol.fields import require
from sandpod_runner.protocol.paths import spell

COARSE: Final = 5  # CLOCK_REALTIME_COARSE of Linux, for which `time` has no name
MOST: Final = 100  # artifacts that a run's end names; the rest is counted
_ROOM: Final = 32 * 1024  # bytes of their names and sizes there
MAX_KNOWN: Final = 2000
"""Artifacts of all runs that a list can have, and runs since which it can be asked for; the oldest are forgotten."""
_MAX_FILES: Final = 50_000  # files of the workspace that are looked at
_QUICK: Final = 0.003  # seconds that a look at the workspace may take in the event loop
_CACHES: Final = frozenset(
    {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".ipynb_checkpoints", "node_modules"}
)
"""Folders that tools fill for themselves."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, and the files that had changed in that very step of the clock already."""

    time: int
    ties: frozenset[tuple[int, int]] = frozenset()


class Found(NamedTuple):
    """What a run created or changed: path, size in bytes, time in seconds since 1970; and how many more there are."""

    entries: list[dict[str, Any]]
    more: int


class Artifacts:
    """The artifacts of one workspace."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._latest: list[tuple[int, int]] = []
        self._uploads: dict[str, int] = {}
        self._known: dict[str, int] = {}
        self._runs: dict[str, int] = {}
        self._count = 0
        self._lock = threading.Lock()  # uploads are recorded and workspaces looked through in threads

    def begin(self, run: str) -> Mark:
        """Record a run that is about to begin, and return the moment."""
        with self._lock:
            self._count += 1
            _put(self._runs, run, self._count)
        now = time.clock_gettime_ns(COARSE)
        return Mark(now, frozenset(tie for tie in self._latest if tie[1] >= now))

    def uploaded(self, path: str) -> None:
        """Record a file that a tool has written: it is no run's artifact."""
        with contextlib.suppress(OSError):  # removed since
            info = os.stat(os.path.join(self._root, path), follow_symlinks=False)
            with self._lock:
                _put(self._uploads, path, info.st_ctime_ns)

    async def end(self, run: str, mark: Mark) -> Found:
        """Return what was created or changed since a mark, by path. Where it takes long it goes on in a thread."""
        now = time.clock_gettime_ns(COARSE)
        changes, found = self._changes(mark), []
        deadline = time.monotonic() + _QUICK
        for change in changes:
            if change is not None:
                found.append(change)
            if time.monotonic() > deadline:
                found += await in_thread(lambda: [each for each in changes if each is not None])
                break
        found.sort()
        # What another run has not changed since it begins in this very step of the clock.
        self._latest += [(info.st_ino, info.st_ctime_ns) for _, info in found]
        self._latest = [tie for tie in self._latest if tie[1] >= now]
        with self._lock:
            order = self._runs.get(run, self._count)
            for path, _ in found:
                # A run that has begun later may have ended before.
                _put(self._known, path, max(order, self._known.get(path, 0)))
        listing = Listing(MOST, [], room=_ROOM)
        for path, info in found:
            if not listing.add(_entry(path, info)):
                break
        return Found(listing.entries, len(found) - len(listing.entries))

    def list(self, since: Any = None) -> list[dict[str, Any]]:
        """Return the artifacts that are still there, by path: all, or those since a run. Raises Refusal: not_found."""
        with self._lock:
            order = 0
            if since is not None:
                order = self._runs.get(since, 0) if isinstance(since, str) else 0
                require(order, "There is no run of that name, or it was forgotten.", "not_found")
            paths = sorted(path for path, known in self._known.items() if known >= order)
        entries = []
        for path in paths:
            with contextlib.suppress(OSError):  # removed since
                info = os.stat(os.path.join(self._root, path), follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    entries.append(_entry(path, info))
        return entries

    def _changes(self, mark: Mark) -> Iterator[tuple[str, os.stat_result] | None]:
        """Yield what has changed since a mark, and None for all else that is looked at."""
        walk = Walk(self._root, public=True, skip=_CACHES)
        for entry in itertools.islice((entry for entry in walk if not entry.is_folder), _MAX_FILES):
            info = entry.info
            changed = (
                info.st_ctime_ns >= mark.time
                and stat.S_ISREG(info.st_mode)
                and (info.st_ino, info.st_ctime_ns) not in mark.ties
                and self._uploads.get(entry.path) != info.st_ctime_ns
            )
            yield (entry.path, info) if changed else None


def _put(table: dict[str, int], name: str, value: int) -> None:
    table.pop(name, None)
    table[name] = value
    if len(table) > MAX_KNOWN:
        del table[next(iter(table))]


def _entry(path: str, info: os.stat_result) -> dict[str, Any]:
    return {"path": spell(path), "size": info.st_size, "mtime": info.st_mtime}
