"""Decides what to do about a pool: how many warm sandboxes to make, which to take away, and what its status says.

Called by `reconcile.py`. Pure. A pool never has more than `replicas` sandboxes, and `maxSurge` more while out-of-date
ones are replaced. Ones that fail keep their place for a growing time, so that a broken template costs little.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sandpod_api import names
from sandpod_api.conditions import SENTENCES, Condition, ConditionStatus, ConditionType, Reason, find, is_true, merge
from sandpod_api.types import Sandbox, SandboxPool, SandboxPoolStatus
from sandpod_operator.actions import Action, Create, PatchStatus, Plan
from sandpod_operator.causes import Cause, clean
from sandpod_operator.observe import ObservedPool
from sandpod_operator.plan import delete_sandbox, whole_status
from sandpod_operator.resources import POOLS, SANDBOXES
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.status import is_final
from sandpod_operator.story import pool_story
from sandpod_operator.warm_sandboxes import build_warm_sandbox, template_hash

# Not the template's fault: replaced at once, however often.
_BAD_LUCK = frozenset({Reason.NODE_LOST, Reason.EVICTED})
_PASSING = frozenset({Reason.POD_PENDING, Reason.STARTING, Reason.START_RETRIED, Reason.OPEN_NETWORK_ALLOWED})
# Counts change with every claim; an autoscaler looks every 15 seconds.
_STATUS_EVERY = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolPlan(Plan):
    """A plan, and what to remember: warm sandboxes that failed since a current one was last ready."""

    failures: int = 0


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
    stale = _stale(observed, now)
    failed = [m for m in observed.members if _given_up(m, observed, settings, stale, now)]
    kept = _without(observed.members, failed)
    unused = _unneeded(kept, observed, stale, now)
    kept = _without(kept, unused)
    status = _status(observed, now)
    actions: list[Action] = [delete_sandbox(m) for m in (*failed, *unused)]
    actions += _creations(kept, observed, stale)
    actions += _status_actions(observed, status, now)
    recovered = any(is_warm(m) and m.metadata.name not in stale for m in kept)
    guilty = any(not _excused(m) for m in failed)
    return PoolPlan(
        actions=tuple(actions),
        due=_due(observed, settings, now),
        failures=0 if recovered else observed.failures + guilty,
    )


def is_warm(sandbox: Sandbox) -> bool:
    """Tell whether a pool's sandbox can be claimed."""
    return is_true(sandbox.status.conditions, ConditionType.READY)


def _without(members: Sequence[Sandbox], gone: Sequence[Sandbox]) -> list[Sandbox]:
    """Return those that are not among the others. By name: comparing whole objects would cost more than the rest."""
    names_gone = {m.metadata.name for m in gone}
    return [m for m in members if m.metadata.name not in names_gone]


def _stale(observed: ObservedPool, now: datetime) -> frozenset[str]:
    """Return the names of those that are out of date: made from another state of the template, or too old.

    The template is hashed once for all of them: this is run for each event of each warm sandbox.
    """
    if observed.template is None:
        return frozenset()
    current = template_hash(observed.template)
    max_age = timedelta(seconds=observed.pool.spec.max_age)
    return frozenset(
        m.metadata.name
        for m in observed.members
        if m.metadata.annotations.get(names.ANNOTATION_TEMPLATE_HASH) != current or _age(m, now) >= max_age
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
    """Return the sandboxes that have to go: out of date, or more than wanted, the least useful first."""
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


def _creations(members: Sequence[Sandbox], observed: ObservedPool, stale: Collection[str]) -> Iterator[Create]:
    if observed.template is None or observed.template.metadata.deletion_timestamp is not None:
        return
    fresh = sum(m.metadata.name not in stale for m in members)
    room = _allowed(members, observed, stale) - len(members)
    missing = max(0, min(observed.pool.spec.replicas - fresh, room))
    for suffix in observed.suffixes[:missing]:
        yield Create(resource=SANDBOXES, manifest=build_warm_sandbox(observed.pool, observed.template, suffix))


def _status(observed: ObservedPool, now: datetime) -> SandboxPoolStatus:
    pool = observed.pool
    ready = sum(is_warm(m) for m in observed.members)
    blocked = _blocked(observed)
    conditions = merge(pool.status.conditions, _conditions(pool, ready, blocked), now)
    progressing = find(conditions, ConditionType.PROGRESSING)
    full = progressing is None or progressing.reason == Reason.POOL_FULL
    return SandboxPoolStatus(
        replicas=len(observed.members),
        ready_replicas=ready,
        selector=f"{names.LABEL_POOL}={pool.metadata.name},{names.LABEL_STATE}={names.STATE_WARM}",
        reason=None if full or progressing is None else progressing.reason,
        conditions=conditions,
        observed_generation=pool.metadata.generation,
    )


def _conditions(pool: SandboxPool, ready: int, blocked: Cause | None) -> list[Condition]:
    wanted = pool.spec.replicas
    filling = Cause(Reason.POOL_FILLING, SENTENCES[Reason.POOL_FILLING])
    full = Cause(Reason.POOL_FULL, SENTENCES[Reason.POOL_FULL])
    available: tuple[ConditionStatus, Cause]
    progressing: tuple[ConditionStatus, Cause]
    if ready >= wanted:
        available, progressing = ("True", full), ("False", full)
    else:
        empty = blocked or Cause(Reason.POOL_EMPTY, SENTENCES[Reason.POOL_EMPTY])
        available = ("True", filling) if ready else ("False", empty)
        progressing = ("False", blocked) if blocked else ("True", filling)
    return [
        _condition(pool, ConditionType.AVAILABLE, *available),
        _condition(pool, ConditionType.PROGRESSING, *progressing),
    ]


def _condition(pool: SandboxPool, kind: ConditionType, status: ConditionStatus, why: Cause) -> Condition:
    return Condition(
        type=kind,
        status=status,
        reason=why.reason,
        message=why.message,
        observed_generation=pool.metadata.generation,
    )


def _blocked(observed: ObservedPool) -> Cause | None:
    """Return what keeps warm sandboxes from starting: the reason that most of them have, in its own words."""
    if observed.template is None:
        text = f"There is no SandboxTemplate {observed.pool.spec.template_ref.name!r} here."
        return Cause(Reason.POOL_BLOCKED, text)
    stuck = [
        ready
        for m in sorted(observed.members, key=lambda m: m.metadata.name)
        if (ready := find(m.status.conditions, ConditionType.READY)) is not None
        and ready.status != "True"
        and ready.reason not in _PASSING
    ]
    if not stuck:
        return None
    commonest = Counter(ready.reason for ready in stuck).most_common(1)[0][0]
    message = next(ready.message for ready in stuck if ready.reason == commonest)
    return Cause(Reason.POOL_BLOCKED, clean(f"{commonest}: {message}"))


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
    return min((time for time in times if time is not None and time > now), default=None)
