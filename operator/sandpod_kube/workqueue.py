"""Who is worked on when: one worker for a key at a time, repeats joined, errors retried later, due dates kept."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta

from sandpod_kube.errors import ClusterError
from sandpod_kube.resources import Key

_log = logging.getLogger(__name__)
_MAX_DOUBLINGS = 20
_TICK = 0.5  # seconds between two looks at due dates

Work = Callable[[Key], Awaitable[datetime | None]]
"""Works on a key; returns when to look again at the latest."""


class WorkQueue:
    """Keys to work on, now or at some time."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime],
        backoff_min: float,
        backoff_max: float,
        around: Callable[[Key], AbstractContextManager[object]] = nullcontext,
        waited: Callable[[Key, timedelta], None] = lambda *_: None,
    ) -> None:
        self._around = around  # each turn, with what is logged of it
        self._waited = waited  # called with each key as its turn comes
        self._since: dict[Key, datetime] = {}
        self._clock = clock
        self._backoff = (backoff_min, backoff_max)
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._busy: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._dates: dict[Key, datetime] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._again)

    def add(self, key: Key) -> None:
        """Have the key worked on soon; once, however often it is added before its turn."""
        self._since.setdefault(key, self._clock())
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_at(self, key: Key, date: datetime) -> None:
        """Have the key worked on at that time, unless an earlier one is kept already."""
        known = self._dates.get(key)
        if known is None or date < known:
            self._dates[key] = date

    def release_due(self) -> None:
        """Add every key whose time has come."""
        now = self._clock()
        # No heap: most dates are replaced long before they come, and ten thousand are looked through in a millisecond.
        for key in [key for key, date in self._dates.items() if date <= now]:
            del self._dates[key]
            self.add(key)

    def forget(self, key: Key) -> None:
        """Drop what is kept about a key that is gone."""
        self._dates.pop(key, None)
        self._failures.pop(key, None)

    async def run_dates(self) -> None:
        """Add keys as their time comes, until cancelled."""
        while True:
            self.release_due()
            await asyncio.sleep(_TICK)

    async def run_worker(self, work: Work) -> None:
        """Work on keys until cancelled."""
        while True:
            await self._turn(await self._ready.get(), work)

    async def _turn(self, key: Key, work: Work) -> None:
        with self._around(key):
            await self._work_on(key, work)

    async def _work_on(self, key: Key, work: Work) -> None:
        self._waiting.discard(key)
        self._busy.add(key)
        self._waited(key, self._clock() - self._since.pop(key))
        # A date that was set by an earlier turn is void: this turn sets its own.
        self._dates.pop(key, None)
        try:
            date = await work(key)
        except ClusterError as error:
            _log.warning("%s %s/%s: %s", key.kind, key.namespace, key.name, error)
            self._retry(key)
        except Exception:  # noqa: BLE001 - the outermost loop: one object's fault must not end the work on the others
            _log.exception("%s %s/%s failed", key.kind, key.namespace, key.name)
            self._retry(key)
        else:
            self._failures.pop(key, None)
            if date is not None:
                self.add_at(key, date)
        finally:
            self._busy.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    def _retry(self, key: Key) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        shortest, longest = self._backoff
        wait = min(longest, shortest * 2 ** min(failures, _MAX_DOUBLINGS))
        self.add_at(key, self._clock() + timedelta(seconds=wait))
