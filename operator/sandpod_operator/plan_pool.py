"""Decides what to do about a pool: how many warm sandboxes to make, which to take away, and what its status says.

Called by `reconcile.py`. Pure. A pool never has more than `replicas` sandboxes, and `maxSurge` more while out-of-date
ones are replaced. Ones that fail keep their place for a growing time, so that a broken template costs little. How many
it makes while the quota or the nodes are full is in `shares.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sandpod_api import names
from sandpod_api.conditions import ConditionType, Reason, find
from sandpod_api.types import Sandbox, SandboxPoolStatus
from sandpod_operator.actions import Action, Create, PatchStatus, Plan
from sandpod_operator.observe import ObservedPool
from sandpod_operator.plan import delete_sandbox, whole_status
from sandpod_operator.pool_status import compute_pool_status, is_stuck, is_warm
from sandpod_operator.resources import POOLS, SANDBOXES, Key
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.shares import FIRST_BATCH, Neighbours, Share, asks_again, may_make, may_wait, to_give
from sandpod_operator.status import is_final
from sandpod_operator.story import pool_story
from sandpod_operator.warm_sandboxes import build_warm_sandbox, template_hash

# Not the template's fault: replaced at once, however often.
_BAD_LUCK = frozenset({Reason.NODE_LOST, Reason.EVICTED})
# Counts change with every claim; an autoscaler looks every 15 seconds.
_STATUS_EVERY = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolPlan(Plan):
    """A plan, and what to remember.

    Attributes:
        failures: Warm sandboxes that failed since a current one was last ready.
        share: What the pool has of what it wants; None for one that is being deleted.
        gave: The uid of the claim or the pool for which it gives a warm sandbox up.
    """

    failures: int = 0
    share: Share | None = None
    gave: str | None = None


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
    failed = [m for m in observed.members if _given_up(m, observed, settings, now)]
    kept = [m for m in observed.members if m not in failed]
    unused = _unneeded(kept, observed, now)
    kept = [m for m in kept if m not in unused]
    share = _share(kept, observed, now)
    others = replace(observed.others, pools=(*(p for p in observed.others.pools if p.key != share.key), share))
    withdrawn, gave = [*_too_many_waiting(kept, share, others, observed)], None
    giving = to_give(others, observed.given, now)
    if giving is not None and giving[0].key == share.key:
        gave = giving[1]
        withdrawn.append(max((m for m in kept if is_warm(m)), key=lambda m: (_age(m, now), m.metadata.name)))
    status = compute_pool_status(observed, others, share, now)
    actions: list[Action] = [delete_sandbox(m) for m in (*failed, *unused, *withdrawn)]
    if not withdrawn:
        actions += _creations(may_make(share, others), observed)
    actions += _status_actions(observed, status, now)
    recovered = any(is_warm(m) and not _stale(m, observed, now) for m in kept)
    guilty = any(not _excused(m) for m in failed)
    return PoolPlan(
        actions=tuple(actions),
        due=_due(observed, settings, now),
        failures=0 if recovered else observed.failures + guilty,
        share=share,
        gave=gave,
    )


def _stale(sandbox: Sandbox, observed: ObservedPool, now: datetime) -> bool:
    """Tell whether it is out of date: made from another state of the template, or too old."""
    if observed.template is None:
        return False
    current = sandbox.metadata.annotations.get(names.ANNOTATION_TEMPLATE_HASH) == template_hash(observed.template)
    return not current or _age(sandbox, now) >= timedelta(seconds=observed.pool.spec.max_age)


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


def _given_up(sandbox: Sandbox, observed: ObservedPool, settings: OperatorSettings, now: datetime) -> bool:
    if not is_final(sandbox.status.conditions):
        return False
    retry = _retry_at(sandbox, observed, settings)
    return _excused(sandbox) or _stale(sandbox, observed, now) or retry is None or retry <= now


def _unneeded(members: Sequence[Sandbox], observed: ObservedPool, now: datetime) -> list[Sandbox]:
    """Return the sandboxes that have to go: out of date, or more than wanted, the least useful first."""
    spec = observed.pool.spec
    stale = [m for m in members if _stale(m, observed, now)]
    gone = [m for m in stale if not is_warm(m)]
    fresh_ready = sum(is_warm(m) for m in members if m not in stale)
    old_ready = sorted((m for m in stale if is_warm(m)), key=lambda m: -_age(m, now))
    # Those that replace them are ready first, so that the pool never shrinks for an update.
    gone += old_ready[: max(0, fresh_ready + len(old_ready) - spec.replicas)]
    rest = [m for m in members if m not in gone]
    excess = len(rest) - _allowed(rest, observed, now)
    order = sorted(rest, key=lambda m: (is_warm(m), not _stale(m, observed, now), -_age(m, now), m.metadata.name))
    return gone + order[: max(0, excess)]


def _allowed(members: Sequence[Sandbox], observed: ObservedPool, now: datetime) -> int:
    """Return how many sandboxes the pool may have."""
    spec = observed.pool.spec
    updating = any(_stale(m, observed, now) for m in members)
    return spec.replicas + (min(spec.update_strategy.max_surge, spec.replicas) if updating else 0)


def _creations(count: int, observed: ObservedPool) -> Iterator[Create]:
    if observed.template is not None:
        for suffix in observed.suffixes[:count]:
            yield Create(resource=SANDBOXES, manifest=build_warm_sandbox(observed.pool, observed.template, suffix))


def _missing(members: Sequence[Sandbox], observed: ObservedPool, now: datetime) -> int:
    """Return how many sandboxes the pool would make now, had it the place."""
    if observed.template is None or observed.template.metadata.deletion_timestamp is not None:
        return 0
    fresh = sum(not _stale(m, observed, now) for m in members)
    missing = min(observed.pool.spec.replicas - fresh, _allowed(members, observed, now) - len(members))
    ready = sum(is_warm(m) for m in members)
    if any(is_stuck(m) and not _waits(m, observed) for m in members):
        # What is wrong with some is likely wrong with the next.
        missing = min(missing, max(FIRST_BATCH, ready) - (len(members) - ready))
    return max(0, missing)


def _share(members: Sequence[Sandbox], observed: ObservedPool, now: datetime) -> Share:
    pool = observed.pool
    refused = sorted(m.metadata.name for m in members if m.metadata.name in observed.refused)
    unscheduled = sum(_unscheduled(m) for m in members)
    pending = sum(_pending(m, observed) for m in members)
    namespace = pool.metadata.namespace
    return Share(
        key=Key(POOLS.kind, namespace, pool.metadata.name),
        uid=pool.metadata.uid,
        wish=pool.spec.replicas,
        placed=len(members) - len(refused) - unscheduled - pending,
        ready=sum(is_warm(m) for m in members),
        pending=pending,
        missing=_missing(members, observed, now),
        refused=Key(SANDBOXES.kind, namespace, refused[0]) if refused else None,
        tried=max((observed.refused[name] for name in refused), default=observed.passed),
        unscheduled=unscheduled,
    )


def _pending(sandbox: Sandbox, observed: ObservedPool) -> bool:
    name = sandbox.metadata.name
    return not (name in observed.started or name in observed.refused or is_warm(sandbox) or is_stuck(sandbox))


def _unscheduled(sandbox: Sandbox) -> bool:
    ready = find(sandbox.status.conditions, ConditionType.READY)
    return ready is not None and ready.reason == Reason.UNSCHEDULABLE


def _waits(sandbox: Sandbox, observed: ObservedPool) -> bool:
    """Tell whether it waits for a place in the quota or on a node."""
    return sandbox.metadata.name in observed.refused or _unscheduled(sandbox)


def _too_many_waiting(
    members: Sequence[Sandbox], share: Share, others: Neighbours, observed: ObservedPool
) -> Iterator[Sandbox]:
    """Return the waiting sandboxes that are withdrawn: one tries the quota for all, and nodes are shared."""
    by_name = sorted(members, key=lambda m: m.metadata.name)
    yield from [m for m in by_name if m.metadata.name in observed.refused][1:]
    yield from [m for m in by_name if _unscheduled(m)][may_wait(share, others) :]


def _status_actions(observed: ObservedPool, status: SandboxPoolStatus, now: datetime) -> Iterator[Action]:
    pool = observed.pool
    if status == pool.status or _too_soon(observed, now):
        return
    metadata = pool.metadata
    yield PatchStatus(resource=POOLS, namespace=metadata.namespace, name=metadata.name, status=whole_status(status))
    yield from pool_story(pool, status)


def _too_soon(observed: ObservedPool, now: datetime) -> bool:
    return observed.status_written is not None and now < observed.status_written + _STATUS_EVERY


def _due(observed: ObservedPool, settings: OperatorSettings, now: datetime) -> datetime | None:
    times = [_retry_at(m, observed, settings) for m in observed.members if is_final(m.status.conditions)]
    max_age = timedelta(seconds=observed.pool.spec.max_age)
    times += [m.metadata.creation_timestamp + max_age for m in observed.members if m.metadata.creation_timestamp]
    if _too_soon(observed, now):
        times.append(now + _STATUS_EVERY)
    if (before := observed.given.get(observed.pool.metadata.uid)) is not None:
        times.append(asks_again(before))
    return min((time for time in times if time is not None and time > now), default=None)
