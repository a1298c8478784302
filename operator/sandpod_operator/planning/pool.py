"""Decides what to do about a pool: how many warm sandboxes to make, which to take away, and what its status says.

A pool never has more sandboxes than it wants, and `maxSurge` more while out-of-date ones are replaced. Ones that fail
keep their place for a growing time, and `PoolBackoff` bounds how many are under way at once, so that a broken
template costs little. What is left to others while quota or nodes are full is in `quota.line`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sandpod_api import names
from sandpod_api.conditions import ConditionType, Reason, is_true, merge
from sandpod_api.types import PoolClaims, Sandbox, SandboxPool, SandboxPoolStatus
from sandpod_kube.resources import POOLS, SANDBOXES, Key
from sandpod_operator.manifests.pod import build_warm_sandbox, template_hash
from sandpod_operator.model.actions import Action, Create, Emit, PatchStatus, Plan
from sandpod_operator.model.demand import Demand
from sandpod_operator.model.observed import FIRST, ObservedPool, PoolBackoff, Share, Tally
from sandpod_operator.planning.autoscale import Size, shown, size_pool
from sandpod_operator.planning.members import Member, look_at
from sandpod_operator.planning.sandbox import changed, delete_sandbox, earliest, whole_status
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.status.failures import MAX_MESSAGE, Cause, cause, clean

# Not the template's fault: replaced at once, however often.
_BAD_LUCK = frozenset({Reason.NODE_LOST, Reason.EVICTED})
_ORDER = "Free places go to claims first, then to the pool with the smallest share of its replicas."
_CLAIMS_FIRST = "Claimed sandboxes are waiting for a node and go first."
# Counts change with every claim; an autoscaler looks every 15 seconds.
_STATUS_EVERY = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolPlan(Plan):
    """A plan, and what to remember once it is carried out."""

    pool: SandboxPool
    ready: int = 0  # warm sandboxes that can be claimed, the one that is given up among them
    wanted: int = 0
    demand: Demand | None = None  # of a pool that follows its claims
    claims: int = 0  # that are part of it
    tally: Tally = field(default_factory=Tally)  # what the status that it writes counts
    backoff: PoolBackoff = field(default_factory=PoolBackoff)
    share: Share | None = None  # None for a pool that is being deleted
    gives_to: Key | None = None  # for whom it gives a warm sandbox up


def plan_pool(observed: ObservedPool, settings: OperatorSettings, now: datetime) -> PoolPlan:
    """Decide about one pool at this time, in whole seconds."""
    if observed.pool.metadata.deletion_timestamp is not None:
        ready = sum(is_warm(m) for m in observed.members)
        return PoolPlan(pool=observed.pool, ready=ready, backoff=observed.backoff)
    return _Pass(observed, settings, now).plan()


class _Pass:
    """One look at a pool. What concerns all its sandboxes is found once: this runs for each event of each of them."""

    def __init__(self, observed: ObservedPool, settings: OperatorSettings, now: datetime) -> None:
        self._observed, self._settings, self._now = observed, settings, now
        self._spec = observed.pool.spec
        self._max_age = timedelta(seconds=self._spec.max_age)
        self._template = template_hash(observed.template) if observed.template is not None else None
        self._members = look_at(observed.members, self._template, self._max_age, now)
        self._warm = [m.sandbox for m in self._members if m.warm]
        stuck = any(m.lacks_quota or m.lacks_node for m in self._members)
        self._size = size_pool(observed, self._warm, now, stuck=stuck)
        self._wanted = self._size.wanted

    def plan(self) -> PoolPlan:
        """Return what to do."""
        observed = self._observed
        failed = [m for m in self._members if m.final and self._given_up(m)]
        kept = _without(self._members, failed)
        unused = self._unneeded(kept)
        kept = _without(kept, unused)
        fresh = [m for m in kept if not m.stale]
        others = [m for m in fresh if not m.warm]
        good = [m.name for m in fresh if m.warm]
        # Not those that the quota refused: they say nothing of the template.
        bad = [m.name for m in others if m.stuck and not m.lacks_quota]
        refused = any(m.lacks_quota for m in others)
        backoff = observed.backoff.after(self._template, good=good, bad=bad, refused=refused)
        given, unplaced = self._given(kept), self._unplaced(kept)
        if given:  # What replaces it must not find its place before whom it was given up for.
            backoff = replace(backoff, window=1)
        actions: list[Action] = [delete_sandbox(m.sandbox) for m in (*failed, *unused, *given, *unplaced)]
        if not given and not unplaced:
            room = self._allowed(kept) - len(kept)
            may_begin = self._may_begin(others, len(bad), backoff)
            actions += self._creations(min(self._wanted - len(fresh), room, may_begin))
        blocked = _blocked(observed, [m for m in self._members if m.stuck], self._now)
        status = _status(observed, self._size, len(self._warm), blocked, self._now)
        reported = list(self._status_actions(status))
        written = self._now if reported else observed.backoff.status_written
        failures = (
            0 if good else observed.backoff.failures + any(m.sandbox.status.reason not in _BAD_LUCK for m in failed)
        )
        return PoolPlan(
            pool=observed.pool,
            actions=(*actions, *reported),
            due=self._due(),
            ready=status.ready_replicas,
            wanted=self._wanted,
            demand=self._size.demand,
            claims=observed.claims,
            tally=observed.tally if reported else Tally(),
            backoff=replace(backoff, failures=failures, status_written=written),
            share=Share(
                key=Key(POOLS.kind, observed.pool.metadata.namespace, observed.pool.metadata.name),
                wanted=self._wanted,
                ready=sum(m.warm for m in kept),
                unscheduled=sum(m.lacks_node for m in kept),
            ),
            gives_to=observed.neighbours.gives_to if given else None,
        )

    def _retry_at(self, member: Member) -> datetime | None:
        """Return when a failed warm sandbox gives up its place: later, the more have failed."""
        if member.ready is None or member.ready.last_transition_time is None:
            return None
        return member.ready.last_transition_time + self._settings.refused_wait(self._observed.backoff.failures)

    def _given_up(self, member: Member) -> bool:
        retry = self._retry_at(member)
        at_once = member.sandbox.status.reason in _BAD_LUCK or member.stale
        return at_once or retry is None or retry <= self._now

    def _unneeded(self, members: Sequence[Member]) -> list[Member]:
        """Return the sandboxes to delete: out of date, or more than wanted, the least useful first."""
        stale = [m for m in members if m.stale]
        gone = [m for m in stale if not m.warm]
        ready = sum(m.warm for m in members)
        stale_ready = sorted((m for m in stale if m.warm), key=lambda m: -m.age)
        # Those that replace them are ready first, so that the pool never shrinks for an update.
        gone += stale_ready[: max(0, ready - self._wanted)]
        rest = _without(members, gone)
        excess = len(rest) - self._allowed(rest)
        if excess > 0:
            rest.sort(key=lambda m: (m.warm, not m.stale, -m.age, m.name))
            gone += rest[:excess]
        return gone

    def _allowed(self, members: Sequence[Member]) -> int:
        updating = any(m.stale for m in members)
        return self._wanted + (min(self._spec.update_strategy.max_surge, self._wanted) if updating else 0)

    def _may_begin(self, others: Sequence[Member], bad: int, backoff: PoolBackoff) -> int:
        """Return how many sandboxes the pool may create now, judging by its up-to-date ones that are not ready."""
        waiting, under_way = sum(m.lacks_node for m in others), len(others) - bad
        if not backoff.proven:
            under_way += bad - waiting
        limits = [backoff.window - under_way]
        if not backoff.proven:
            limits.append(FIRST - under_way - waiting)
        most = self._may_wait()
        if most is not None and backoff.window == 1:
            limits.append(most - under_way - waiting)  # Whatever more were made would only be taken back.
        return min(limits)

    def _may_wait(self) -> int | None:
        """Return how many sandboxes may wait for a node at once: the scheduler knows nothing of pools and claims.

        A pool that shares the nodes with no other has all wait, since autoscalers of nodes go by them.
        """
        neighbours = self._observed.neighbours
        if neighbours.nodes_yield_until is not None and self._now < neighbours.nodes_yield_until:
            return 0
        return 1 if neighbours.wait_for_node else None

    def _unplaced(self, members: Sequence[Member]) -> list[Member]:
        """Return the sandboxes that leave the scheduler's queue to others."""
        most = self._may_wait()
        waiting = sorted((m for m in members if m.lacks_node), key=lambda m: m.name)
        return waiting[most:] if most is not None else []

    def _given(self, members: Sequence[Member]) -> list[Member]:
        """Return the warm sandbox that is given up for somebody else, if any: the youngest."""
        ready = [m for m in members if m.warm] if self._observed.neighbours.gives_to is not None else []
        return [min(ready, key=lambda m: (m.age, m.name))] if ready else []

    def _creations(self, count: int) -> Iterator[Create]:
        template = self._observed.template
        if template is not None and template.metadata.deletion_timestamp is None:
            for suffix in self._observed.suffixes[: max(0, count)]:
                yield Create(SANDBOXES, build_warm_sandbox(self._observed.pool, template, suffix))

    def _status_actions(self, status: SandboxPoolStatus) -> Iterator[Action]:
        pool = self._observed.pool
        if status != pool.status and not self._too_soon():
            yield PatchStatus(POOLS, pool.metadata, whole_status(status))
            progress = changed(status, pool.status, ConditionType.PROGRESSING, "message")
            if progress is not None and progress.reason == Reason.POOL_BLOCKED:
                yield Emit(POOLS, pool.metadata, progress.reason, progress.message, "Warning")

    def _too_soon(self) -> bool:
        written = self._observed.backoff.status_written
        return written is not None and self._now < written + _STATUS_EVERY

    def _due(self) -> datetime | None:
        times = [self._retry_at(m) for m in self._members if m.final]
        oldest = max((m.age for m in self._members if m.age < self._max_age), default=None)
        times.append(self._now + self._max_age - oldest if oldest is not None else None)
        times.append(self._now + _STATUS_EVERY if self._too_soon() else None)
        times += [self._observed.neighbours.nodes_yield_until, self._size.due]
        return earliest(times, self._now)


def _without(members: Sequence[Member], gone: Sequence[Member]) -> list[Member]:
    names_gone = {m.name for m in gone}
    return [m for m in members if m.name not in names_gone] if gone else list(members)


def is_warm(sandbox: Sandbox) -> bool:
    """Return whether a pool's sandbox can be claimed."""
    return is_true(sandbox.status.conditions, ConditionType.READY)


def _status(observed: ObservedPool, size: Size, ready: int, blocked: Cause | None, now: datetime) -> SandboxPoolStatus:
    pool, demand, tally = observed.pool, size.demand, observed.tally
    # Never by itself a reason to write: an older CRD does not keep it.
    begins = any(tally) or pool.status.observed_generation is None
    full, filling = ready >= size.wanted, cause(Reason.POOL_FILLING)
    if full:
        available = progressing = cause(Reason.POOL_FULL)
    else:
        available = filling if ready else blocked or cause(Reason.POOL_EMPTY)
        progressing = blocked or filling
    found = [
        available.condition(ConditionType.AVAILABLE, status=full or ready > 0),
        progressing.condition(ConditionType.PROGRESSING, status=not full and blocked is None),
        *([size.condition] if size.condition is not None else []),
    ]
    return SandboxPoolStatus(
        replicas=len(observed.members),
        ready_replicas=ready,
        desired_replicas=size.wanted,
        claims_per_second=shown(demand.rate) if demand is not None else None,
        start_seconds=shown(demand.start) if demand is not None else None,
        claims=_counted(pool.status.claims, tally, now if begins else None),
        selector=f"{names.LABEL_POOL}={pool.metadata.name},{names.LABEL_STATE}={names.STATE_WARM}",
        reason=None if full else progressing.reason,
        conditions=merge(pool.status.conditions, found, now, pool.metadata.generation),
        observed_generation=pool.metadata.generation,
    )


def _counted(claims: PoolClaims, tally: Tally, now: datetime | None) -> PoolClaims:
    return PoolClaims(warm=claims.warm + tally.warm, cold=claims.cold + tally.cold, since=claims.since or now)


def _blocked(observed: ObservedPool, stuck: Sequence[Member], now: datetime) -> Cause | None:
    """Return what prevents warm sandboxes from starting: the most common reason among them, with its message."""
    if observed.template is None:
        name = observed.pool.spec.template_ref.name
        return Cause(Reason.POOL_BLOCKED, f"SandboxTemplate {name!r} does not exist in this namespace.")
    reasons = [m.ready for m in sorted(stuck, key=lambda m: m.name) if m.ready is not None]
    if reasons:
        commonest = Counter(ready.reason for ready in reasons).most_common(1)[0][0]
        message = next(ready.message for ready in reasons if ready.reason == commonest)
        order = f" {_ORDER}" if commonest == Reason.QUOTA_EXCEEDED else ""
        return Cause(Reason.POOL_BLOCKED, clean(f"{commonest}: {message[: MAX_MESSAGE - 200]}{order}"))
    yields = observed.neighbours.nodes_yield_until
    if yields is not None and now < yields and observed.backoff.window == 1:
        return Cause(Reason.POOL_BLOCKED, f"{Reason.UNSCHEDULABLE}: {_CLAIMS_FIRST}")
    return None
