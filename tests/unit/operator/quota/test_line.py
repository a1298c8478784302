"""The line of those who wait for a place: whose turn it is, when it rests, and who gives a place up for whom."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest

from sandpod_kube.resources import POOLS, SANDBOXES, Key
from sandpod_operator.model.observed import Share
from sandpod_operator.quota.line import GIVES_AGAIN, LEAVES, NODES_YIELD, REST, SETTLES, Line
from support.operator.world import NOW, SPACE


def pool(name: str) -> Key:
    return Key(POOLS.kind, SPACE, name)


def sandbox(name: str) -> Key:
    return Key(SANDBOXES.kind, SPACE, name)


def shares(**pools: tuple[int, int]) -> Mapping[Key, Share]:
    """What pools have, all of it ready, and what they want."""
    return {pool(n): Share(key=pool(n), wanted=wish, placed=has, ready=has) for n, (has, wish) in pools.items()}


LEAST_LAST = shares(a=(3, 4), b=(1, 4))


def a_line(*waiting: str) -> Line:
    """A line in which one sandbox of each waits: of a pool `a` or `b`, or a claim of another name."""
    made = Line(retry=5, longest=300)
    for name in waiting:
        joins(made, name)
    return made


def joins(line: Line, name: str, *, at: datetime = NOW, for_node: bool = False) -> None:
    key = pool(name) if name in {"a", "b"} else sandbox(name)
    line.join(key, f"uid-{name}", sandbox(name), at, for_node=for_node)


def wakes_at(line: Line) -> datetime:
    """When somebody is to be looked at again, while nobody has the turn."""
    wakes = line.wakes(LEAST_LAST)
    assert wakes is not None
    return wakes[1]


def everyone_is_refused(line: Line, at: datetime = NOW) -> list[str]:
    """Refuse each whose turn it is, and return them in that order."""
    asked = []
    while (turn := line.turn(LEAST_LAST, at)) is not None:
        asked.append(turn.name)
        line.refused(f"uid-{turn.name}", "full", at)
    return asked


def test_claims_come_first_the_longest_wait_before_others_then_pools_by_what_they_have() -> None:
    line = a_line("a", "b", "late")
    joins(line, "early", at=NOW - timedelta(seconds=1))
    assert everyone_is_refused(line) == ["early", "late", "b", "a"]


def test_nobody_is_asked_twice_before_there_is_a_sign_of_room() -> None:
    line = a_line("a", "b")
    everyone_is_refused(line)
    assert line.turn(LEAST_LAST, NOW + timedelta(seconds=4)) is None
    line.pod_left(NOW)
    assert line.turn(LEAST_LAST, NOW) == sandbox("b")


def test_time_is_a_sign_of_room_and_ever_more_rarely() -> None:
    line, now, waits = a_line("a", "b"), NOW, []
    for _ in range(8):
        assert everyone_is_refused(line, now) == ["b", "a"]
        waits.append((wakes_at(line) - now).total_seconds())
        now = wakes_at(line)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    line.pod_left(now)
    now += SETTLES
    everyone_is_refused(line, now)
    assert wakes_at(line) - now == timedelta(seconds=5)


def test_those_who_come_later_do_not_put_the_next_round_off() -> None:
    line = a_line("claim")
    everyone_is_refused(line)
    at = wakes_at(line)
    for number in range(20):
        joins(line, f"later-{number}", at=NOW + timedelta(seconds=number / 10))
        everyone_is_refused(line, NOW + timedelta(seconds=number / 10))
    assert wakes_at(line) == at
    assert line.turn(LEAST_LAST, at) == sandbox("claim")


def test_refusal_in_the_moment_in_which_the_quota_counts_what_left_keeps_the_turn() -> None:
    line = a_line("claim", "a")
    everyone_is_refused(line)
    line.pod_left(NOW)
    tries = 0
    now = NOW
    while line.turn(LEAST_LAST, now) != sandbox("a"):
        if line.turn(LEAST_LAST, now) == sandbox("claim"):
            line.refused("uid-claim", "full", now)
            tries += 1
        else:
            assert wakes_at(line) - now == REST
            now = wakes_at(line)
    assert (tries, now) == (SETTLES // REST + 1, NOW + SETTLES), "and after the moment it is passed on"


def test_pods_that_leave_all_the_time_do_not_let_the_line_rest_for_ever() -> None:
    line = a_line("claim", "a")
    everyone_is_refused(line)
    now = NOW
    for _ in range(10):
        line.pod_left(now)
        if line.turn(LEAST_LAST, now) == sandbox("claim"):
            line.refused("uid-claim", "full", now)
        if line.turn(LEAST_LAST, now) == sandbox("a"):
            break
        now += REST
    assert now <= NOW + SETTLES


def test_whoever_fails_passes_the_turn_on() -> None:
    line = a_line("claim", "a")
    line.pass_on("uid-claim", NOW)
    assert line.turn(LEAST_LAST, NOW) == sandbox("a")
    line.pass_on("uid-of-nobody", NOW)
    assert line.turn(LEAST_LAST, NOW) == sandbox("a")


def test_sandbox_that_is_claimed_while_it_waits_waits_as_a_claim() -> None:
    line = a_line("a", "b")
    line.join(sandbox("a"), "uid-a", sandbox("a"), NOW)
    assert set(line.waiters) == {sandbox("a"), pool("b")}
    assert line.turn(LEAST_LAST, NOW) == sandbox("a")


def test_line_without_anybody_asks_nobody() -> None:
    line = a_line("a")
    line.leave("uid-a")
    assert not line.queue
    assert line.turn(LEAST_LAST, NOW) is None
    assert (line.waiters, line.whose) == ({}, {})


@pytest.mark.parametrize(
    ("waits", "has", "giver"),
    [
        ("claim", {"a": (3, 4), "b": (1, 4)}, "a"),
        ("claim", {"a": (1, 2), "b": (3, 8)}, "b"),
        ("claim", {"a": (1, 2), "b": (1, 1)}, "b"),
        ("claim", {"a": (0, 2), "b": (0, 1)}, None),
        ("a", {"a": (0, 2), "b": (2, 8)}, "b"),
        ("a", {"a": (0, 2), "b": (1, 1)}, None),
        ("a", {"a": (1, 9), "b": (9, 9)}, None),
    ],
)
def test_place_is_given_up_by_who_has_most_and_the_last_one_for_claims_alone(
    waits: str, has: dict[str, tuple[int, int]], giver: str | None
) -> None:
    line = a_line(waits)
    assert line.giver(shares(**has), NOW) is None, "it may find room by itself"
    line.pass_on(f"uid-{waits}", NOW)
    found = line.giver(shares(**has), NOW)
    assert (found[0] if found else None) == (pool(giver) if giver else None)


@pytest.mark.parametrize(("amount", "helps"), [("50", True), ("51", False)])
def test_nothing_is_given_up_for_what_is_larger_than_the_whole_quota(amount: str, *, helps: bool) -> None:
    line = a_line("claim")
    said = "exceeded quota: q, requested: limits.cpu={}, used: limits.cpu=9, limited: limits.cpu=50"
    line.refused("uid-claim", said.format(amount), NOW)
    assert (line.giver(LEAST_LAST, NOW) is not None) is helps
    line.refused("uid-claim", said.format(1), NOW)
    assert line.giver(LEAST_LAST, NOW) is not None, "it asks for less by now"


def test_place_that_did_not_help_is_followed_by_another_ever_later() -> None:
    line = a_line("claim")
    everyone_is_refused(line)
    waits, now = [], NOW
    for _ in range(8):
        found = line.giver(LEAST_LAST, now)
        assert found == (pool("a"), sandbox("claim"))
        line.gave(found[1], now)
        later = line.waiters[sandbox("claim")].next_gift
        assert line.giver(LEAST_LAST, later - timedelta(seconds=1)) is None
        waits.append((later - now) / GIVES_AGAIN)
        now = later
    assert waits == [1, 2, 4, 8, 16, 32, 64, 64]


def test_pool_that_comes_while_a_place_is_on_its_way_waits_for_that() -> None:
    line = a_line("claim")
    everyone_is_refused(line)
    line.gave(sandbox("claim"), NOW)
    joins(line, "a")
    assert line.turn(LEAST_LAST, NOW) is None
    assert line.wakes(LEAST_LAST) == (sandbox("claim"), NOW + LEAVES)
    assert line.turn(LEAST_LAST, NOW + timedelta(seconds=6)) is None, "nor is time a sign of room"
    assert line.turn(LEAST_LAST, NOW + LEAVES) is not None, "but for a pod that does not leave"
    everyone_is_refused(line, NOW + LEAVES)
    line.pod_left(NOW)
    assert line.turn(LEAST_LAST, NOW) == sandbox("claim")


def test_claim_that_no_node_takes_gets_a_place_keeps_the_nodes_for_a_while_and_asks_for_no_quota() -> None:
    line = a_line()
    joins(line, "claim", for_node=True)
    assert not line.queue
    assert line.turn(LEAST_LAST, NOW) is None
    assert line.giver(LEAST_LAST, NOW) == (pool("a"), sandbox("claim"))
    assert line.nodes_yield_until() == NOW + NODES_YIELD
    line.leave("uid-claim")
    assert line.nodes_yield_until() < NOW
