"""The records of sandboxes that live in this process: who holds them, how many there may be, when they end.

Pure bookkeeping: no task, no clock (the time is an argument), no process.
"""

import contextlib
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sandpod_api.conditions import SENTENCES, Reason
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord, Status
from sandpod_gateway.errors import SandpodError

KEEP_ENDED: Final = timedelta(minutes=10)
"""How long a sandbox that has ended can still be asked about."""
MAX_ENDED: Final = 1000
"""Records of ended sandboxes at most; the oldest go first."""

_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How many live sandboxes there may be, of one caller and of all together."""

    per_owner: int
    total: int


class Ledger:
    """The records, by name."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._records: dict[str, SandboxRecord] = {}
        self._ended: dict[str, datetime] = {}
        self._busy: dict[str, datetime] = {}
        self._starting: Counter[str] = Counter()

    def get(self, name: str) -> SandboxRecord | None:
        """Return the record of that name, also of a sandbox that has ended."""
        return self._records.get(name)

    def of_owner(self, owner: str) -> list[SandboxRecord]:
        """Return the owner's records, oldest first."""
        return sorted((r for r in self._records.values() if r.owner == owner), key=lambda r: r.created)

    def live(self) -> list[SandboxRecord]:
        """Return the records of sandboxes that have not ended."""
        return [r for r in self._records.values() if r.name not in self._ended]

    def of_session(self, owner: str, session: str) -> SandboxRecord | None:
        """Return the owner's live sandbox of that session."""
        return next((r for r in self.live() if r.owner == owner and r.session == session), None)

    @contextlib.contextmanager
    def starting(self, owner: str) -> Iterator[None]:
        """Hold a place for a sandbox while it starts.

        Raises:
            SandpodError: max_sessions or pool_exhausted, when there is none.
        """
        live = Counter(r.owner for r in self.live()) + self._starting
        if live[owner] >= self._limits.per_owner:
            message = f"You have {live[owner]} sandboxes, which is the most you can have."
            raise SandpodError(ErrorCode.MAX_SESSIONS, message, next_step="Close one that you no longer need.")
        if live.total() >= self._limits.total:
            message = f"All {self._limits.total} sandboxes of this server are in use."
            step = "Close one that you no longer need, or try again later."
            raise SandpodError(ErrorCode.POOL_EXHAUSTED, message, next_step=step)
        self._starting[owner] += 1
        try:
            yield
        finally:
            self._starting -= Counter([owner])

    def add(
        self, request: ClaimRequest, source: tuple[str, str | None], lifetime: tuple[int, int], now: datetime
    ) -> SandboxRecord:
        """Record a new Ready sandbox and give it a name that can't be guessed.

        Its source is the template and what stands for an image, its lifetime the seconds to live, and without use.
        """
        record = SandboxRecord(
            name="sbx-" + "".join(secrets.choice(_ALPHABET) for _ in range(10)),
            owner=request.owner,
            session=request.session,
            template=source[0],
            image=source[1],
            network=request.network,
            status="Ready",
            created=now,
            ttl=lifetime[0],
            idle_timeout=lifetime[1],
        )
        self._records[record.name] = _used(record, now)
        return self._records[record.name]

    def touch(self, name: str, now: datetime) -> None:
        """Note that a live sandbox is in use. No-op when there is none."""
        if name in self._records and name not in self._ended:
            self._records[name] = _used(self._records[name], now, self._busy.get(name))

    def keep_busy(self, name: str, until: datetime, now: datetime) -> None:
        """Note that a live sandbox counts as used until then. No-op when there is none."""
        if name in self._records and name not in self._ended:
            self._busy[name] = max(until, self._busy.get(name, until))
            self.touch(name, now)

    def end(self, name: str, status: Status, why: tuple[Reason, str], now: datetime) -> None:
        """Note that a live sandbox has ended, and why. No-op when there is none."""
        if name not in self._records or name in self._ended:
            return
        reason, message = why
        self._records[name] = replace(self._records[name], status=status, reason=reason.value, message=message)
        self._ended[name] = now
        for oldest in list(self._ended)[: max(0, len(self._ended) - MAX_ENDED)]:
            self.remove(oldest)

    def change(self, name: str, **fields: Any) -> None:
        """Change a live sandbox's record."""
        self._records[name] = replace(self._records[name], **fields)

    def remove(self, name: str) -> None:
        """Forget a sandbox."""
        self._records.pop(name, None)
        self._ended.pop(name, None)
        self._busy.pop(name, None)

    def forget(self, now: datetime) -> None:
        """Forget sandboxes that ended long ago."""
        for name in [name for name, ended in self._ended.items() if now - ended >= KEEP_ENDED]:
            self.remove(name)

    def due(self, now: datetime) -> list[tuple[str, Reason]]:
        """Return the live sandboxes whose time is over, and which of their times."""
        due = []
        for record in self.live():
            if now >= record.created + timedelta(seconds=record.ttl):
                due.append((record.name, Reason.TTL_EXPIRED))
            elif record.expires is not None and now >= record.expires:
                due.append((record.name, Reason.IDLE_TIMEOUT))
        return due

    def next_event(self) -> datetime | None:
        """Return when a sandbox has to end or an ended one to be forgotten, unless something is used before."""
        times = [r.expires for r in self.live() if r.expires is not None]
        times += [ended + KEEP_ENDED for ended in self._ended.values()]
        return min(times, default=None)


def sentence(reason: Reason) -> str:
    """Return the reason in words."""
    return SENTENCES[reason]


def _used(record: SandboxRecord, now: datetime, busy: datetime | None = None) -> SandboxRecord:
    idle = max(now, busy or now) + timedelta(seconds=record.idle_timeout)
    expires = min(record.created + timedelta(seconds=record.ttl), idle)
    return replace(record, last_activity=now, expires=expires)
