"""How many warm sandboxes a pool wants that follows its claims.

As many as are claimed while new ones start, twice that since claims don't come evenly, and `minReplicas` on top. The
rate rises within seconds and halves in two minutes: to have too few costs callers seconds, to have too many for a while
costs a little memory. A pool that runs empty doubles its rate, since claims that find nothing are not all seen here.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import floor
from typing import Final, NamedTuple

from sandpod_api.conditions import Condition, ConditionType, Reason, find
from sandpod_api.types import Autoscale, Sandbox
from sandpod_operator.model.demand import Demand
from sandpod_operator.model.observed import ObservedPool
from sandpod_operator.status.failures import Cause

MARGIN: Final = 2.0
MINUTE: Final = 60  # seconds of claims that are remembered
# Seconds; in each of these a rate is only seen in so many claims: fewer come close to each other by chance.
_WINDOWS: Final = (5, 15)
_ENOUGH: Final = 10
_HALVES: Final = 120.0  # seconds in which the rate falls by half where nothing is claimed
_QUICKENS: Final = 30.0  # seconds in which half of a quicker start is believed
_LONGEST_PAUSE: Final = 30.0  # seconds by which it falls at once at the most: a clock that jumps is no silence
_AGAIN: Final = 5.0  # seconds between two looks while the rate falls, and two doublings at the least
_TOLERANCE: Final = 0.1  # share by which a pool shrinks at the least: every start that is broken off was in vain
_MIN_START, _MAX_START = 0.5, 60.0  # seconds
_SLOWER: Final = 0.5  # weight of a start that took longer than those before


class Size(NamedTuple):
    """What a pool wants."""

    wanted: int
    demand: Demand | None = None  # for the next plan; None as is the rest for a pool of a fixed size
    condition: Condition | None = None
    due: datetime | None = None  # when to look again, though nothing happens


def size_pool(observed: ObservedPool, warm: Collection[Sandbox], now: datetime, *, stuck: bool) -> Size:
    """Return how many warm sandboxes a pool wants.

    `warm` are those that can be claimed; with `stuck`, quota or nodes have no place for some of the others.
    """
    spec = observed.pool.spec
    if (limits := spec.autoscale) is None:
        return Size(spec.replicas)
    before = observed.demand or Demand.of(observed.pool.status)
    new = [sandbox for sandbox in warm if sandbox.metadata.name not in observed.backoff.good]
    passed = 0.0 if before.at is None else min(_LONGEST_PAUSE, max(0.0, (now - before.at).total_seconds()))
    demand = _counted(replace(before, start=_start(before.start, new, passed)), observed.claims, now, passed)
    if not warm and before.wanted < limits.max_replicas:
        demand = _doubled(demand, now)
    asked = limits.min_replicas + floor(demand.rate * demand.start * MARGIN + 0.5)
    wanted = min(_steady(asked, before.wanted, limits), limits.max_replicas)
    there = max(limits.min_replicas, len(observed.members))
    held = stuck and wanted > there
    why = _why(demand, asked, limits, held=there if held else None)
    demand = replace(demand, wanted=there if held else wanted, at=now)
    due = now + timedelta(seconds=_AGAIN) if demand.wanted > limits.min_replicas else None
    condition = why.condition(ConditionType.SCALING_LIMITED, status=why.reason != Reason.DESIRED_WITHIN_RANGE)
    return Size(demand.wanted, demand, condition, due)


def _start(before: float, new: Sequence[Sandbox], passed: float) -> float:
    """Return how long a start takes, by those that have become warm: whole seconds, so the mean of many counts."""
    took = []
    for sandbox in new:
        ready, created = find(sandbox.status.conditions, ConditionType.READY), sandbox.metadata.creation_timestamp
        if ready is not None and ready.last_transition_time is not None and created is not None:
            took.append((ready.last_transition_time - created).total_seconds())
    if not took:
        return before
    mean = sum(took) / len(took)
    weight = _SLOWER if mean > before else 1 - 0.5 ** (passed / _QUICKENS)
    return min(_MAX_START, max(_MIN_START, before + (mean - before) * weight))


def _counted(demand: Demand, claims: int, now: datetime, passed: float) -> Demand:
    """Return the demand with so many more claims until now, and as it has fallen meanwhile."""
    # Nothing of what is said to come: the clock was put back.
    recent = [each for each in demand.recent if 0 <= (now - each[0]).total_seconds() < MINUTE]
    if claims:
        same = recent.pop()[1] if recent and recent[-1][0] == now else 0
        recent.append((now, same + claims))
    rate = max(_seen(recent, now), demand.rate * 0.5 ** (passed / _HALVES))
    return replace(demand, recent=tuple(recent), rate=rate)


def _seen(recent: Sequence[tuple[datetime, int]], now: datetime) -> float:
    counts = {seconds: _within(recent, now, seconds) for seconds in _WINDOWS}
    short = (count / seconds for seconds, count in counts.items() if count >= _ENOUGH)
    return max(_within(recent, now, MINUTE) / MINUTE, *short, 0.0)


def _within(recent: Sequence[tuple[datetime, int]], now: datetime, seconds: float) -> int:
    return sum(count for second, count in recent if (now - second).total_seconds() < seconds)


def _doubled(demand: Demand, now: datetime) -> Demand:
    """Return the demand of a pool that is empty: twice as much, if it was claimed from and had time to refill."""
    pause = max(_AGAIN, demand.start)
    waits = demand.raised is not None and 0 <= (now - demand.raised).total_seconds() < pause
    last = _within(demand.recent, now, pause) / pause
    if waits or not last:
        return demand
    return replace(demand, rate=2 * max(demand.rate, last), raised=now)


def _steady(asked: int, before: int, limits: Autoscale) -> int:
    """Return what is asked for, or what was wanted before if that is little more."""
    least = (1 - _TOLERANCE) * before
    return before if asked > limits.min_replicas and least <= asked < before else asked


def _why(demand: Demand, asked: int, limits: Autoscale, *, held: int | None) -> Cause:
    """Return why a pool wants what it wants; `held` is what it is held at, since some find no place."""
    need = f"{shown(demand.rate):g} claims/s and {shown(demand.start):g} s for a start"
    if held is not None:
        text = f"{need} ask for {asked}; {held} are wanted until those that are there have found a place."
        return Cause(Reason.POOL_BLOCKED, text)
    if asked > limits.max_replicas:
        text = f"{need} ask for {asked}, and maxReplicas is {limits.max_replicas}."
        return Cause(Reason.TOO_MANY_REPLICAS, text)
    return Cause(Reason.DESIRED_WITHIN_RANGE, f"{need} ask for {asked}.")


def shown(number: float) -> float:
    """Return a number to two digits, as the status has it: what changes less is no news."""
    return float(f"{number:.2g}")
