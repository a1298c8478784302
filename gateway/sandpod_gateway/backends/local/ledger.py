"""The records of sandboxes that live in this process: who holds them, how many there may be, when they end.

Pure bookkeeping: no task, no clock (the time is an argument), no process.
"""

import contextlib
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from sandpod_api.conditions import SENTENCES, Reason
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord, Status
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.errors import SandpodError

KEEP_ENDED: Final = timedelta(minutes=10)
"""How long a sandbox that has ended can still be asked about."""
MAX_ENDED: Final = 1000
"""Records of ended sandboxes at most; the oldest go first."""

_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"


class Ledger:
    """The records, by name, also of sandboxes that have ended."""

    def __init__(self, settings: LocalSettings) -> None:
        self.records: dict[str, SandboxRecord] = {}
        self._settings = settings
        self._ended: dict[str, datetime] = {}
        self._busy: dict[str, datetime] = {}
        self._starting: Counter[str] = Counter()

    def of_owner(self, owner: str) -> list[SandboxRecord]:
        """Return the owner's records, oldest first."""
        return sorted((r for r in self.records.values() if r.owner == owner), key=lambda r: r.created)

    def live(self) -> list[SandboxRecord]:
        """Return the records of sandboxes that have not ended."""
        return [r for r in self.records.values() if r.name not in self._ended]

    def of_session(self, owner: str, session: str) -> SandboxRecord | None:
        """Return the owner's live sandbox of that session; None where it is no session's (an empty name)."""
        return next((r for r in self.live() if session and (r.owner, r.session) == (owner, session)), None)

    @contextlib.contextmanager
    def starting(self, owner: str) -> Iterator[None]:
        """Hold a place for a sandbox while it starts.

        Raises:
            SandpodError: max_sessions or pool_exhausted, when there is none.
        """
        live = Counter(r.owner for r in self.live()) + self._starting
        if live[owner] >= self._settings.max_sandboxes_per_owner:
            message = f"You have {live[owner]} sandboxes, which is the most you can have."
            raise SandpodError(ErrorCode.MAX_SESSIONS, message, next_step="Close one that you no longer need.")
        if live.total() >= self._settings.max_sandboxes:
            message = f"All {self._settings.max_sandboxes} sandboxes of this server are in use."
            step = "Close one that you no longer need, or try again later."
            raise SandpodError(ErrorCode.POOL_EXHAUSTED, message, next_step=step)
        self._starting[owner] += 1
        try:
            yield
        finally:
            self._starting -= Counter([owner])

    def add(self, request: ClaimRequest, image: str | None, lifetime: tuple[int, int], now: datetime) -> SandboxRecord:
        """Record a new Ready sandbox, with its seconds to live and without use, by a name that can't be guessed."""
        ttl, idle_timeout = lifetime
        record = SandboxRecord(
            name="sbx-" + "".join(secrets.choice(_ALPHABET) for _ in range(10)),
            owner=request.owner,
            session=request.session,
            template=self._settings.template,
            image=image,
            network=request.network,
            status="Ready",
            created=now,
            ttl=ttl,
            idle_timeout=idle_timeout,
        )
        return self._note_use(record, now)

    def touch(self, name: str, now: datetime, busy: datetime | None = None) -> None:
        """Note that a live sandbox is in use, and counts as used until `busy` too. No-op when there is none."""
        if name in self.records and name not in self._ended:
            if busy is not None:
                self._busy[name] = max(busy, self._busy.get(name, busy))
            self._note_use(self.records[name], now)

    def end(self, name: str, status: Status, why: tuple[Reason, str], now: datetime) -> None:
        """Note that a live sandbox has ended, and why. No-op when there is none."""
        if name not in self.records or name in self._ended:
            return
        reason, message = why
        self.records[name] = replace(self.records[name], status=status, reason=reason.value, message=message)
        self._ended[name] = now
        for oldest in list(self._ended)[: max(0, len(self._ended) - MAX_ENDED)]:
            self.remove(oldest)

    def remove(self, name: str) -> None:
        """Forget a sandbox."""
        self.records.pop(name, None)
        self._ended.pop(name, None)
        self._busy.pop(name, None)

    def expire(self, now: datetime) -> list[str]:
        """End the sandboxes whose time is over, and return their names; forget those that ended long ago."""
        over = [r for r in self.live() if r.expires is not None and now >= r.expires]
        for r in over:
            is_old = now >= r.created + timedelta(seconds=r.ttl)
            reason = Reason.TTL_EXPIRED if is_old else Reason.IDLE_TIMEOUT
            self.end(r.name, "Expired", (reason, SENTENCES[reason]), now)
        for name in [name for name, ended in self._ended.items() if now - ended >= KEEP_ENDED]:
            self.remove(name)
        return [r.name for r in over]

    def next_event(self) -> datetime | None:
        """Return when a sandbox has to end or an ended one to be forgotten, unless something is used before."""
        times = [r.expires for r in self.live() if r.expires is not None]
        times += [ended + KEEP_ENDED for ended in self._ended.values()]
        return min(times, default=None)

    def _note_use(self, record: SandboxRecord, now: datetime) -> SandboxRecord:
        idle = max(now, self._busy.get(record.name, now)) + timedelta(seconds=record.idle_timeout)
        expires = min(record.created + timedelta(seconds=record.ttl), idle)
        used = self.records[record.name] = replace(record, last_activity=now, expires=expires)
        return used
