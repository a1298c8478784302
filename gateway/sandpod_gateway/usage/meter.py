"""Counts what this gateway's callers use, and refuses what is over a limit, by all gateways' counts together. No I/O.

A call costs some microseconds: what other gateways use is added up when their documents come, not when it is needed.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from sandpod_gateway.metrics import Metrics
from sandpod_gateway.usage import live, quotas
from sandpod_gateway.usage.amounts import GIB, SECOND, Account, Amounts, Scope
from sandpod_gateway.usage.busy import BusyTimes
from sandpod_gateway.usage.document import Document, SandboxUse, day_of
from sandpod_gateway.usage.live import Live, Window
from sandpod_gateway.usage.ongoing import Moved, OngoingRuns
from sandpod_gateway.usage.settings import QuotaSettings
from sandpod_gateway.usage.shared import DaySums, Others, ScopeCounts

MAX_CPUS: Final = 64
"""Processors that a sandbox is believed to use at most: its report may be forged, and counts for its tenant."""


class Meter:
    """What is used here; `document` is what of it is kept, and `others` what is used at other gateways."""

    def __init__(self, limits: QuotaSettings, metrics: Metrics, clock: Callable[[], float] = time.time) -> None:
        self.document = Document("")
        self.others = Others()
        self.clock = clock
        self.memory: dict[tuple[str, str], int] = {}  # bytes that sandboxes may use, by tenant and template
        self.changed = asyncio.Event()  # set with each change that others should see
        self.urgent = asyncio.Event()  # set with each that should be kept soon
        self.limits = quotas.Limits(limits)
        self._metrics = metrics
        self._accounts: dict[Account, Live] = {}
        self._runs = ScopeCounts()
        self._claims = ScopeCounts()
        self._calls: dict[Scope, Window] = {}
        self._busy = BusyTimes(self._now, self._charge_busy)
        self.ongoing = OngoingRuns(self, self._now)
        self._held, self._held_uploads = ScopeCounts(), ScopeCounts()  # bytes that are on their way
        self._sums = self._others_sums = DaySums()

    def call(self, account: Account, key_id: bytes) -> None:
        """Count a call. Raises SandpodError: rate_limited."""
        now = self.clock()
        windows = []
        for level, scope, quota in self.limits.of(account):
            if (limit := quota.calls_per_minute) is not None:
                made = self._calls.setdefault(scope, Window())
                windows.append(made)
                other = self.others.calls.get(scope)
                buckets = made.recent(now) if other is None else made.recent(now) + other.recent(now)
                if (wait := live.seconds_until_room(buckets, limit, now)) is not None:
                    raise quotas.too_many_calls(level, limit, wait)
        for made in windows:
            made.add(now)
        self._live(account).calls.add(now)
        self.document.key_used(key_id.hex(), int(now // 60))
        self.charge(account, Amounts(calls=1))
        self.changed.set()

    @contextmanager
    def running(self, account: Account) -> Iterator[None]:
        """Hold a place for a run, from before anything is done for it until the block is left.

        Raises SandpodError: rate_limited or quota_exceeded, where the account may begin no run now.
        """
        self.check_run(account)
        self._count_run(account, 1)
        try:
            yield
        finally:
            self._count_run(account, -1)

    def check_run(self, account: Account) -> None:
        """Raise rate_limited or quota_exceeded where the account may begin no run now."""
        for level, scope, quota in self.limits.of(account):
            limit = quota.concurrent_runs
            if limit is not None and self._runs[scope] + self.others.runs[scope] >= limit:
                raise quotas.too_many_runs(level, limit)
            limit = quota.cpu_seconds_per_day
            if limit is not None and self._today(scope).cpu >= limit * SECOND:
                raise quotas.day_is_used_up(level, limit, "seconds of processor time", self.clock())
        self.check_bytes(account)

    def check_bytes(self, account: Account, size: int = 0, *, upload: bool = False) -> None:
        """Raise quota_exceeded where the account may move nothing more today, or `upload`, or not so many bytes."""
        rooms = []
        for level, scope, quota in self.limits.of(account):
            used = self._today(scope)
            moved = used.bytes_in + used.bytes_out + self._held[scope]
            uploads = used.uploads + self._held_uploads[scope]
            limits = [(quota.bytes_per_day, moved, "bytes in and out of sandboxes")]
            limits += [(quota.upload_bytes_per_day, uploads, "bytes of uploaded files")] if upload else []
            for limit, amount, what in limits:
                if limit is not None:
                    if amount >= limit:
                        raise quotas.day_is_used_up(level, limit, what, self.clock())
                    rooms.append(limit - amount)
        if size > (room := min(rooms, default=size)):
            raise quotas.too_large_for_today(room, self.clock())

    @contextmanager
    def busy(self, sandbox: str) -> Iterator[None]:
        """Count the time of a sandbox as one in which a run is going on, until the block is left."""
        self._busy.count(sandbox, 1)
        try:
            yield
        finally:
            self._busy.count(sandbox, -1)

    def ended(
        self, account: Account, sandbox: str, *, cpu: float, elapsed: float, moved: Moved, run: str | None = None
    ) -> None:
        """Count a run's end: seconds of processor time, seconds that it took, and bytes in and out.

        `run` is its id where the document has it, or had it when it was written last.
        """
        believed = round(min(cpu, elapsed * MAX_CPUS) * SECOND)
        self.charge(account, Amounts(cpu=believed, bytes_in=moved[0], bytes_out=moved[1], runs=1), sandbox, run)

    def move(self, account: Account, sandbox: str, *, into: int = 0, out: int = 0) -> None:
        """Count bytes of files before they go into a sandbox, or on from it.

        Raises SandpodError: quota_exceeded, where they are too many for today; then none of them counts.
        """
        self.check_bytes(account, into + out, upload=bool(into))
        self.charge(account, Amounts(bytes_in=into, uploads=into, bytes_out=out), sandbox)

    @contextmanager
    def moving(self, account: Account, sandbox: str, *, files: int = 0, packages: int = 0) -> Iterator[None]:
        """Hold room for bytes that go into a sandbox until the block is left; then they count. Raises as `move`."""
        amounts = Amounts(bytes_in=files + packages, uploads=files)
        self.check_bytes(account, amounts.bytes_in, upload=bool(files))
        self._held.add(account, amounts.bytes_in)
        self._held_uploads.add(account, amounts.uploads)
        try:
            yield
            self.charge(account, amounts, sandbox)
        finally:
            self._held.add(account, -amounts.bytes_in)
            self._held_uploads.add(account, -amounts.uploads)

    @contextmanager
    def claiming(self, account: Account, ended: Collection[str]) -> Iterator[None]:
        """Hold a place for a sandbox. `ended` are those of the tenant that take none any more.

        Raises SandpodError: quota_exceeded.
        """
        known = self.sandboxes(account[:1]).items()
        for level, scope, quota in self.limits.of(account):
            held = sum(1 for name, holder in known if holder[: level + 1] == scope and name not in ended)
            if (limit := quota.sandboxes) is not None and held + self._claims[scope] >= limit:
                raise quotas.too_many_sandboxes(level, limit)
        self._claims.add(account, 1)
        try:
            yield
        finally:
            self._claims.add(account, -1)

    def sandboxes(self, tenant: Scope) -> dict[str, Account]:
        """Return who holds which sandboxes of a tenant, as all gateways know it."""
        own = {name: use.account for name, use in self.document.sandboxes.items() if use.until is not None}
        return {name: holder for name, holder in {**self.others.sandboxes, **own}.items() if holder[:1] == tenant}

    def holder(self, sandbox: str) -> Account | None:
        """Return who holds a sandbox, as far as it is known."""
        own = self.document.sandboxes.get(sandbox)
        return own.account if own is not None else self.others.sandboxes.get(sandbox)

    def claimed(self, account: Account, name: str, template: str, at: float) -> None:
        """Count the time of a sandbox that was claimed here, from a time in seconds since 1970."""
        began = round(at * SECOND)
        use = self.document.used(name, SandboxUse(account, template, began))
        use.until, use.memory = began, self.memory.get((use.account.tenant, template), 0)
        self._live(account).sandboxes.add(name)
        self.changed.set()
        self.urgent.set()

    def accrue(self, name: str, until: float, *, has_pod: bool = True) -> None:
        """Count the time of a sandbox of ours up to a time in seconds since 1970."""
        use = self.document.sandboxes[name]
        if use.until is not None:
            elapsed = max(0, round(until * SECOND) - use.until)
            use.until += elapsed
            if has_pod and elapsed:
                self.charge(use.account, Amounts(wall=elapsed, memory=elapsed * use.memory // GIB), name)

    def closed(self, name: str, at: float | None = None) -> None:
        """Count the time of a sandbox of ours to its end, by default now."""
        use = self.document.sandboxes.get(name)
        if use is not None and use.until is not None:
            self.accrue(name, self.clock() if at is None else at)
            use.until = None
            self._live(use.account).sandboxes.discard(name)
            self.changed.set()

    def accrue_runs(self) -> None:
        """Count the time of runs that are going on."""
        self._busy.charge()

    def reset(self, document: Document) -> None:
        """Go on with another document of this gateway, which another one has added to."""
        self.document = document
        for each in self._accounts.values():
            each.sandboxes = set()
        for name, use in document.sandboxes.items():
            if use.until is not None:
                self._live(use.account).sandboxes.add(name)
        self._sums = DaySums.over([document], day_of(self.clock()))
        self.ongoing.follow()
        self.changed.set()

    def take_others(self, others: Others) -> None:
        """Count with these from now on."""
        known, self.others = self.others.documents, others
        if others.documents != known:
            self._others_sums = DaySums.over(others.documents, day_of(self.clock()))

    def publish(self, beat: int) -> bytes:
        """Return what others should know of this gateway's callers."""
        now = self.clock()
        content = live.encode(self._accounts, beat, now)
        for account, each in list(self._accounts.items()):
            if not (each.runs or each.sandboxes or each.calls.buckets):
                del self._accounts[account]
        for scope, window in list(self._calls.items()):
            if not window.recent(now):
                del self._calls[scope]
        return content

    def charge(self, account: Account, amounts: Amounts, sandbox: str | None = None, run: str | None = None) -> None:
        """Count amounts, of a sandbox or of none; `run` as in `ended`."""
        day = day_of(self.clock())
        self.document.charge(day, account, amounts)
        if self._sums.day != day:
            self._sums = DaySums.over([self.document], day)
            self._others_sums = DaySums.over(self.others.documents, day)
        else:
            self._sums.add(account, amounts)
        if sandbox is not None:
            holder = self.others.sandboxes.get(sandbox, account)
            self.document.used(sandbox, SandboxUse(holder, "", self._now())).amounts.add(amounts)
            if run is not None:
                self.document.remember(run, day, account, sandbox, amounts)
        self._metrics.count_use(account.tenant, amounts)

    def _today(self, scope: Scope) -> Amounts:
        both = Amounts()
        for sums in (self._sums, self._others_sums):
            if sums.day == day_of(self.clock()):
                both.add(sums.of(scope))
        return both

    def _count_run(self, account: Account, step: int) -> None:
        """Count a run more, or less (-1)."""
        self._runs.add(account, step)
        self._live(account).runs += step
        self.changed.set()

    def count_run(self, account: Account, sandbox: str, step: int) -> None:
        """Count a run in a sandbox more, or less (-1), that holds no place by `running`."""
        self._count_run(account, step)
        self._busy.count(sandbox, step)

    def _charge_busy(self, sandbox: str, elapsed: int) -> None:
        if (holder := self.holder(sandbox)) is not None:
            self.charge(holder, Amounts(busy=elapsed), sandbox)

    def _live(self, account: Account) -> Live:
        return self._accounts.setdefault(account, Live())

    def _now(self) -> int:
        return round(self.clock() * SECOND)
