"""Decides what to do about a pool: how many warm sandboxes to make, which to take away, and what its status says.

A pool never has more than `replicas` sandboxes, and `maxSurge` more while out-of-date ones are replaced. Ones that fail
keep their place for a growing time, and `model.pool_backoff` bounds how many are under way at once, so that a broken
template costs little. What is left to others while quota or nodes are full is in `quota.line`.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Self

from sandpod_api import names
from sandpod_api.conditions import ConditionType, Reason, find
from sandpod_api.types import Sandbox, SandboxPoolStatus
from sandpod_kube.resources import POOLS, SANDBOXES, Key
from sandpod_operator.manifests.children import build_warm_sandbox, template_hash
from sandpod_operator.model.actions import Action, Create, PatchStatus, Plan
from sandpod_operator.model.observed import ObservedPool, Share
from sandpod_operator.model.pool_backoff import FIRST, PoolBackoff
from sandpod_operator.planning.events import pool_events
from sandpod_operator.planning.sandbox import delete_sandbox, whole_status
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.status.pool import compute_pool_status, is_stuck, is_warm, lacks_node, lacks_quota
from sandpod_operator.status.sandbox import is_final

# Not the template's fault: replaced at once, however often.
_BAD_LUCK = frozenset({Reason.NODE_LOST, Reason.EVICTED})
# Counts change with every claim; an autoscaler looks every 15 seconds.
_STATUS_EVERY = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolPlan(Plan):
    """A plan, and what to remember.

    Attributes:
        failures: Warm sandboxes that failed since a current one was last ready.
        backoff: How its sandboxes have done.
        share: What the pool has of what it wants; None for one that is being deleted.
        gives_to: For whom it gives a warm sandbox up.
    """

    failures: int = 0
    backoff: PoolBackoff = field(default_factory=PoolBackoff)
    share: Share | None = None
    gives_to: Key | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _State:
    """How a pool's up-to-date sandboxes do: names of those that are ready, and of those that can't start, and counts.

    `bad` are the unscheduled ones too, but not those that the quota refused: these say nothing of the template.
    """

    warm: list[str]
    bad: list[str]
    unscheduled: int
    refused: int
    starting: int

    @classmethod
    def of(cls, members: Sequence[Sandbox]) -> Self:
        """Look at each of them once."""
        warm = [m.metadata.name for m in members if is_warm(m)]
        others = [m for m in members if not is_warm(m)]
        bad = [m.metadata.name for m in others if not lacks_quota(m) and is_stuck(m)]
        refused = sum(lacks_quota(m) for m in others)
        return cls(
            warm=warm,
            bad=bad,
            unscheduled=sum(lacks_node(m) for m in others),
            refused=refused,
            starting=len(members) - len(warm) - len(bad) - refused,
        )


def plan_pool(observed: ObservedPool, settings: OperatorSettings, now: datetime) -> PoolPlan:
    """Decide about one pool.

    Args:
        observed: What there is.
        settings: The operator's.
        now: The time, in whole seconds.
    """
    pool = observed.pool
    if pool.metadata.deletion_timestamp is not None:
        return PoolPlan(failures=observed.failures)
    # Once for all of them: this is run for each event of each warm sandbox.
    template = template_hash(observed.template) if observed.template is not None else None
    stale = _stale(observed, template, now)
    failed = [m for m in observed.members if _given_up(m, observed, settings, stale, now)]
    kept = _without(observed.members, failed)
    unused = _unneeded(kept, observed, stale, now)
    kept = _without(kept, unused)
    fresh = [m for m in kept if m.metadata.name not in stale]
    state = _State.of(fresh)
    backoff = observed.backoff.after(template, good=state.warm, bad=state.bad, refused=state.refused > 0)
    given = _given(kept, observed, now)
    if given:
        backoff = replace(
            backoff, window=1
        )  # What replaces it must not find its place before whom it was given up for.
    unplaced = _unplaced(kept, observed, now)
    status = compute_pool_status(observed, now)
    actions: list[Action] = [delete_sandbox(m) for m in (*failed, *unused, *given, *unplaced)]
    if not given and not unplaced:
        room = _allowed(kept, observed, stale) - len(kept)
        missing = min(pool.spec.replicas - len(fresh), room, _may_begin(state, observed, backoff, now))
        actions += _creations(missing, observed)
    actions += _status_actions(observed, status, now)
    recovered = bool(state.warm)
    guilty = any(not _excused(m) for m in failed)
    return PoolPlan(
        actions=tuple(actions),
        due=_due(observed, settings, now),
        failures=0 if recovered else observed.failures + guilty,
        backoff=backoff,
        share=_share(kept, observed),
        gives_to=observed.neighbours.gives_to if given else None,
    )


def _without(members: Sequence[Sandbox], gone: Sequence[Sandbox]) -> list[Sandbox]:
    """Return the members that are not in the other list. By name: comparing whole objects would cost too much."""
    names_gone = {m.metadata.name for m in gone}
    return [m for m in members if m.metadata.name not in names_gone]


def _stale(observed: ObservedPool, template: str | None, now: datetime) -> frozenset[str]:
    """Return the names of those that are out of date: created from another state of the template, or too old."""
    if template is None:
        return frozenset()
    max_age = timedelta(seconds=observed.pool.spec.max_age)
    return frozenset(
        m.metadata.name
        for m in observed.members
        if m.metadata.annotations.get(names.ANNOTATION_TEMPLATE_HASH) != template or _age(m, now) >= max_age
    )


def _age(sandbox: Sandbox, now: datetime) -> timedelta:
    created = sandbox.metadata.creation_timestamp
    return now - created if created is not None else timedelta(0)


def _excused(sandbox: Sandbox) -> bool:
    return sandbox.status.reason in _BAD_LUCK


def _retry_at(sandbox: Sandbox, observed: ObservedPool, settings: OperatorSettings) -> datetime | None:
    """Return when a failed warm sandbox gives up its place: later, the more have failed."""
    ready = find(sandbox.status.conditions, ConditionType.READY)
    if ready is None or ready.last_transition_time is None:
        return None
    wait = min(settings.backoff_max, settings.refused_retry * 2 ** min(observed.failures, 16))
    return ready.last_transition_time + timedelta(seconds=wait)


def _given_up(
    sandbox: Sandbox, observed: ObservedPool, settings: OperatorSettings, stale: Collection[str], now: datetime
) -> bool:
    if not is_final(sandbox.status.conditions):
        return False
    retry = _retry_at(sandbox, observed, settings)
    return _excused(sandbox) or sandbox.metadata.name in stale or retry is None or retry <= now


def _unneeded(
    members: Sequence[Sandbox], observed: ObservedPool, stale: Collection[str], now: datetime
) -> list[Sandbox]:
    """Return the sandboxes to delete: out of date, or more than wanted, the least useful first."""
    spec = observed.pool.spec
    old = [m for m in members if m.metadata.name in stale]
    gone = [m for m in old if not is_warm(m)]
    fresh_ready = sum(is_warm(m) for m in members if m.metadata.name not in stale)
    old_ready = sorted((m for m in old if is_warm(m)), key=lambda m: -_age(m, now))
    # Those that replace them are ready first, so that the pool never shrinks for an update.
    gone += old_ready[: max(0, fresh_ready + len(old_ready) - spec.replicas)]
    rest = _without(members, gone)
    excess = len(rest) - _allowed(rest, observed, stale)
    if excess <= 0:
        return gone
    order = sorted(rest, key=lambda m: (is_warm(m), m.metadata.name not in stale, -_age(m, now), m.metadata.name))
    return gone + order[:excess]


def _allowed(members: Sequence[Sandbox], observed: ObservedPool, stale: Collection[str]) -> int:
    """Return how many sandboxes the pool may have."""
    spec = observed.pool.spec
    updating = any(m.metadata.name in stale for m in members)
    return spec.replicas + (min(spec.update_strategy.max_surge, spec.replicas) if updating else 0)


def _may_begin(state: _State, observed: ObservedPool, backoff: PoolBackoff, now: datetime) -> int:
    """Return how many sandboxes the pool may create now, judging by how its others do."""
    waiting, under_way = state.unscheduled, state.starting + state.refused
    if not backoff.proven:
        under_way += len(state.bad) - waiting
    limits = [backoff.window - under_way]
    if not backoff.proven:
        limits.append(FIRST - under_way - waiting)
    most = _may_wait(observed, now)
    if most is not None and backoff.window == 1:
        limits.append(most - under_way - waiting)  # Whatever more were made would only be taken back.
    return min(limits)


def _may_wait(observed: ObservedPool, now: datetime) -> int | None:
    """Return how many sandboxes may wait for a node at once: the scheduler knows nothing of pools and claims.

    A pool that shares the nodes with no other has all wait, since autoscalers of nodes go by them.
    """
    neighbours = observed.neighbours
    if neighbours.nodes_yield_until is not None and now < neighbours.nodes_yield_until:
        return 0
    return 1 if neighbours.wait_for_node else None


def _unplaced(members: Sequence[Sandbox], observed: ObservedPool, now: datetime) -> list[Sandbox]:
    """Return the sandboxes that leave the scheduler's queue to others."""
    waiting = sorted((m for m in members if lacks_node(m)), key=lambda m: m.metadata.name)
    most = _may_wait(observed, now)
    return waiting[most:] if most is not None else []


def _given(members: Sequence[Sandbox], observed: ObservedPool, now: datetime) -> list[Sandbox]:
    """Return the warm sandbox that is given up for somebody else, if any: the youngest."""
    ready = [m for m in members if is_warm(m)] if observed.neighbours.gives_to is not None else []
    return [min(ready, key=lambda m: (_age(m, now), m.metadata.name))] if ready else []


def _creations(count: int, observed: ObservedPool) -> Iterator[Create]:
    if observed.template is None or observed.template.metadata.deletion_timestamp is not None:
        return
    for suffix in observed.suffixes[: max(0, count)]:
        yield Create(resource=SANDBOXES, manifest=build_warm_sandbox(observed.pool, observed.template, suffix))


def _share(members: Sequence[Sandbox], observed: ObservedPool) -> Share:
    pool = observed.pool
    return Share(
        key=Key(POOLS.kind, pool.metadata.namespace, pool.metadata.name),
        wanted=pool.spec.replicas,
        ready=sum(is_warm(m) for m in members),
        unscheduled=sum(lacks_node(m) for m in members),
    )


def _status_actions(observed: ObservedPool, status: SandboxPoolStatus, now: datetime) -> Iterator[Action]:
    pool = observed.pool
    if status == pool.status or _too_soon(observed, now):
        return
    metadata = pool.metadata
    yield PatchStatus(resource=POOLS, namespace=metadata.namespace, name=metadata.name, status=whole_status(status))
    yield from pool_events(pool, status)


def _too_soon(observed: ObservedPool, now: datetime) -> bool:
    return observed.status_written is not None and now < observed.status_written + _STATUS_EVERY


def _due(observed: ObservedPool, settings: OperatorSettings, now: datetime) -> datetime | None:
    times = [_retry_at(m, observed, settings) for m in observed.members if is_final(m.status.conditions)]
    max_age = timedelta(seconds=observed.pool.spec.max_age)
    times += [m.metadata.creation_timestamp + max_age for m in observed.members if m.metadata.creation_timestamp]
    if _too_soon(observed, now):
        times.append(now + _STATUS_EVERY)
    times.append(observed.neighbours.nodes_yield_until)
    return min((time for time in times if time is not None and time > now), default=None)
