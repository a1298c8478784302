"""How many warm sandboxes a pool wants, second by second: claims in, a number out."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from math import floor
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_api.conditions import ConditionType, Reason
from sandpod_api.types import Sandbox
from sandpod_operator.model.demand import START, Demand
from sandpod_operator.model.observed import ObservedPool, PoolBackoff
from sandpod_operator.planning.autoscale import MARGIN, Size, size_pool
from support.operator.world import NOW, a_pool, a_sandbox, condition

RATE = 45


def warm(name: str = "a", *, took: float = 2, created: datetime = NOW) -> Sandbox:
    """A sandbox that has become warm some time after its creation."""
    ready = {
        **condition("Ready", "True", "Ready"),
        "lastTransitionTime": rfc3339(created + timedelta(seconds=took)),
    }
    meta = {"creationTimestamp": rfc3339(created), "labels": {names.LABEL_POOL: "warm"}}
    return a_sandbox(name, status={"phase": "Warm", "conditions": [ready]}, meta=meta)


class Run:
    """A pool with one warm sandbox, unless a test says otherwise, looked at again and again."""

    def __init__(self, *, least: int = 2, most: int = 1000, status: Any = None) -> None:
        self.pool = a_pool(autoscale={"minReplicas": least, "maxReplicas": most}, status=status)
        self.now = NOW
        self.demand: Demand | None = None
        self.members: tuple[Sandbox, ...] = (warm(),)
        self.backoff = PoolBackoff(good=frozenset({"a"}))
        self.stuck = False

    def look(self, claims: int = 0, *, after: float = 1) -> Size:
        """Let some time pass and look at the pool once."""
        self.now += timedelta(seconds=after)
        observed = ObservedPool(
            pool=self.pool, members=self.members, backoff=self.backoff, demand=self.demand, claims=claims
        )
        ready = [each for each in self.members if each.status.conditions]
        size = size_pool(observed, ready, self.now, stuck=self.stuck)
        self.demand = size.demand
        return size

    def wanted(self, seconds: int, claims: Callable[[int], int]) -> list[int]:
        """Return what is wanted in each of some seconds with so many claims."""
        return [self.look(claims(second)).wanted for second in range(seconds)]


def reason(size: Size) -> tuple[str, str]:
    assert size.condition is not None
    assert size.condition.type == ConditionType.SCALING_LIMITED
    return size.condition.status, size.condition.reason


def test_pool_without_autoscale_wants_its_replicas_and_remembers_nothing() -> None:
    observed = ObservedPool(pool=a_pool(replicas=7), claims=100)
    assert size_pool(observed, [], NOW, stuck=True) == Size(7)


def test_quiet_pool_wants_its_least_and_needs_no_second_look() -> None:
    size = Run().look()
    assert (size.wanted, size.due, reason(size)) == (2, None, ("False", Reason.DESIRED_WITHIN_RANGE))


def test_steady_rate_is_known_within_five_seconds_and_twice_what_it_needs_is_wanted() -> None:
    run = Run()
    grown = run.wanted(60, lambda _: RATE)
    enough = 2 + RATE * START * MARGIN
    assert grown == sorted(grown), "it never shrinks meanwhile"
    assert (grown[4], grown[-1]) == (enough, enough)
    assert grown[0] >= enough / 5


def test_ramp_is_followed_with_room_for_what_comes_while_new_ones_start() -> None:
    grown = Run().wanted(60, lambda second: second)
    assert all(number >= (second - 5) * START for second, number in enumerate(grown))
    assert grown == sorted(grown)


def test_burst_and_what_trickles_in_do_not_fill_the_cluster() -> None:
    run = Run()
    burst = run.look(20).wanted
    assert burst == 2 + 20 / 5 * START * MARGIN
    trickle = Run().wanted(600, lambda second: second % 30 == 0)
    assert max(trickle) <= 3


def test_silence_lets_it_shrink_slowly_down_to_the_least() -> None:
    run = Run()
    full = run.wanted(10, lambda _: RATE)[-1]
    shrinking = [run.look(after=5) for _ in range(400)]
    sizes = [size.wanted for size in shrinking]
    assert sizes == sorted(sizes, reverse=True)
    assert all((size.due is None) == (size.wanted == 2) for size in shrinking)
    assert full * 0.4 < sizes[120 // 5] < full * 0.6, "half of it after two minutes, and the margin of a tenth"
    assert (sizes[-1], shrinking[-1].due) == (2, None)
    steps = [(a, b) for a, b in pairwise(sizes) if a != b]
    assert all(b <= 0.9 * a or b == 2 for a, b in steps), "no start is broken off for a few"


def test_flood_wants_the_most_and_says_that_more_are_asked_for() -> None:
    run = Run(most=50)
    assert run.wanted(600, lambda _: 10_000)[-1] == 50
    size = run.look(10_000)
    assert reason(size) == ("True", Reason.TOO_MANY_REPLICAS)
    assert size.condition is not None
    assert "maxReplicas is 50" in size.condition.message
    assert size.demand is not None
    assert len(size.demand.recent) <= 60


def test_empty_pool_doubles_until_some_are_left_since_refused_claims_are_not_seen() -> None:
    run = Run(least=1, most=100)
    run.members = ()
    grown = run.wanted(60, lambda _: 1)
    steps = [b / a for a, b in pairwise(grown) if b > 1.2 * a]
    assert grown[-1] == 100
    assert len(steps) >= 3
    assert max(steps[1:]) <= 2.5, "and not at each look"
    assert run.demand is not None
    assert run.demand.rate * START * MARGIN <= 200, "what can't be had is not asked for more and more"
    quiet = Run(least=1, most=100)
    quiet.members = ()
    assert set(quiet.wanted(60, lambda _: 0)) == {1}, "one that nobody claims from is just not full yet"


def test_nothing_more_is_wanted_while_quota_or_nodes_have_no_place() -> None:
    run = Run()
    run.backoff = PoolBackoff(good=frozenset({"a", "b"}))
    run.members = (warm(), warm("b"), *(a_sandbox(f"stuck-{i}") for i in range(4)))
    run.stuck = True
    assert run.wanted(10, lambda _: RATE)[-1] == 6
    assert reason(run.look(RATE)) == ("True", Reason.POOL_BLOCKED)
    run.stuck = False
    assert run.look(RATE).wanted == 2 + RATE * START * MARGIN
    few = Run(least=5)
    few.stuck = True
    assert few.look(RATE).wanted == 5, "its least it wants whatever comes"


def test_starts_that_take_longer_count_at_once_and_quicker_ones_in_time() -> None:
    run = Run()
    run.members = (warm("slow", took=9),)
    slow = run.look().demand
    assert slow is not None
    assert slow.start == START + (9 - START) / 2
    run.members = (warm("stuck-for-an-hour", took=3600),)
    assert run.look().demand.start == 60  # type: ignore[union-attr]
    run.members = (warm("quick", took=0),)
    assert run.look(after=30).demand.start == 30  # type: ignore[union-attr]
    for number in range(300):
        run.members = (warm(f"quick-{number}", took=0),)
        run.look()
    assert run.demand is not None
    assert run.demand.start == 0.5
    run.backoff = PoolBackoff(good=frozenset({"known"}))
    run.members = (warm("known", took=50),)
    assert run.look().demand.start == 0.5, "each counts once"  # type: ignore[union-attr]


def test_clock_that_jumps_is_neither_silence_nor_a_flood() -> None:
    run = Run()
    full = run.wanted(20, lambda _: RATE)[-1]
    forward = replace(run.demand) if run.demand is not None else None
    assert run.look(after=86_400).wanted >= 0.8 * full
    run.demand = forward
    assert run.look(after=-86_400).wanted >= 0.9 * full
    back = run.wanted(20, lambda _: RATE)
    assert set(back) <= {full}
    run.members = ()
    run.look(1, after=-3600)
    assert run.demand is not None
    assert run.demand.raised == run.now, "what was doubled in a future that is none any more does not hold it up"


def test_restarted_operator_begins_where_the_status_ends() -> None:
    run = Run()
    full = run.wanted(20, lambda _: RATE)[-1]
    status = {"desiredReplicas": full, "claimsPerSecond": RATE, "startSeconds": START}
    again = Run(status=status)
    assert again.look(after=0).wanted == full
    assert again.look(RATE).wanted == full
    assert Run(status={"desiredReplicas": 7}).look().wanted == 2, "a pool that had a fixed size begins anew"


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(-50, 500), st.booleans(), st.booleans()), max_size=60),
    st.integers(0, 20),
    st.integers(20, 200),
)
def test_whatever_happens_it_stays_within_its_limits_and_remembers_little(
    looks: list[tuple[int, int, bool, bool]], least: int, most: int
) -> None:
    run = Run(least=least, most=most)
    for claims, after, empty, stuck in looks:
        run.members, run.stuck = () if empty else (warm(),), stuck
        size = run.look(claims, after=after)
        assert least <= size.wanted <= most
        assert size.demand is not None
        assert len(size.demand.recent) <= 60
        assert size.wanted == floor(size.wanted)
