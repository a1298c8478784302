"""The line of those who wait for a place: whose turn it is, when it rests, who is woken, who gives a place up."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, cast

import pytest

from sandpod_api import names
from sandpod_api.conditions import Reason
from sandpod_api.types import Sandbox
from sandpod_kube.resources import POOLS, SANDBOXES, Key
from sandpod_operator.cache.object_cache import Store
from sandpod_operator.model.observed import Share
from sandpod_operator.quota.line import GIVES_AGAIN, LEAVES, NODES_YIELD, REST, SETTLES, Line
from sandpod_operator.quota.node_queue import MOST
from support.operator.world import NOW, SPACE, metadata, sandbox_object, settings

if TYPE_CHECKING:
    from sandpod_kube.workqueue import WorkQueue

FULL = "exceeded quota"
LEAST_LAST = {"a": (3, 4), "b": (1, 4)}


def pool(name: str) -> Key:
    return Key(POOLS.kind, SPACE, name)


def sandbox(name: str) -> Key:
    return Key(SANDBOXES.kind, SPACE, name)


def box(name: str, *, claimed: float | None = None, lacks_node: bool = False) -> Sandbox:
    """A sandbox: of the pool `a` or `b`, or claimed if it has another name, by who is named before a hyphen."""
    labels = {names.LABEL_POOL: name}
    status = {"reason": Reason.UNSCHEDULABLE} if lacks_node else {}
    made = sandbox_object(name, claimed=claimed if name in {"a", "b"} else 0)
    if "claim" in made["spec"]:
        made["spec"]["claim"]["owner"] = name.partition("-")[0]
    made["metadata"]["labels"] = labels
    return Sandbox.model_validate({**made, "status": status})


class Bench(Line):
    """A line in which one sandbox of each waits, with a clock, and with pools whose sandboxes are all ready."""

    def __init__(self, *waiting: str, pools: dict[str, tuple[int, int]] | None = None) -> None:
        self.now = NOW
        self.soon: list[str] = []
        self.later: list[tuple[str, datetime]] = []
        store = Store()
        super().__init__(SPACE, store=store, queue=cast("WorkQueue", self), settings=settings(), clock=lambda: self.now)
        for name, (has, wants) in (LEAST_LAST if pools is None else pools).items():
            self._pools[pool(name)] = Share(key=pool(name), wanted=wants, ready=has)
            for number in range(has + waiting.count(name)):
                meta = metadata(f"{name}-{number}", labels={names.LABEL_POOL: name})
                store.put(SANDBOXES, {**sandbox_object(), "metadata": meta})
        for name in waiting:
            self.joins(name)

    def add(self, key: Key) -> None:
        self.soon.append(key.name)

    def add_at(self, key: Key, date: datetime) -> None:
        self.later.append((key.name, date))

    def joins(self, name: str, *, after: float = 0) -> None:
        self.now += timedelta(seconds=after)
        self._join(box(name))

    def turn_after(self, seconds: float = 0) -> str | None:
        """Move the clock on, and return whose turn it is."""
        self.now += timedelta(seconds=seconds)
        turn = self._turn()
        return turn.name if turn is not None else None

    def everyone_is_refused(self) -> list[str]:
        """Refuse each whose turn it is, and return them in that order."""
        asked = []
        while (turn := self.turn_after()) is not None:
            asked.append(turn)
            self.refused(box(turn), FULL)
        return asked

    def giver_after(self, seconds: float = 0) -> tuple[Key, Key] | None:
        self.now += timedelta(seconds=seconds)
        return self._giver()

    @property
    def wakes(self) -> tuple[str, float]:
        """Who is to be looked at next while nobody has the turn, and in how many seconds."""
        self._offer()
        name, date = self.later[-1]
        return name, (date - self.now).total_seconds()


def test_claims_come_first_the_longest_wait_before_others_then_pools_by_what_they_have() -> None:
    line = Bench("a", "b", "early")
    line.joins("late", after=1)
    assert line.everyone_is_refused() == ["early", "late", "b", "a"]


def test_owner_of_many_claims_holds_up_nobodys_first() -> None:
    line = Bench("many-1", "many-2", "many-3")
    for name in ("few-1", "other-1"):
        line.joins(name, after=1)
    let_in = []
    while (turn := line.turn_after(1)) is not None:
        let_in.append(turn)
        if turn == "few-1":
            line.joins("few-2")
        line.let_in(box(turn).metadata.uid)
    assert let_in == ["many-1", "few-1", "other-1", "many-2", "few-2", "many-3"]


def test_nobody_is_asked_twice_before_there_is_a_sign_of_room() -> None:
    line = Bench("a", "b")
    line.everyone_is_refused()
    assert line.turn_after(4) is None
    line.pod_left()
    assert line.turn_after() == "b"


def test_time_is_a_sign_of_room_and_ever_more_rarely() -> None:
    line, waits = Bench("a", "b"), []
    for _ in range(8):
        assert line.everyone_is_refused() == ["b", "a"]
        waits.append(line.wakes[1])
        line.now += timedelta(seconds=waits[-1])
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    line.pod_left()
    line.now += SETTLES
    line.everyone_is_refused()
    assert line.wakes[1] == 5


def test_those_who_come_later_do_not_put_the_next_round_off() -> None:
    line = Bench("claim")
    line.everyone_is_refused()
    for number in range(20):
        line.joins(f"later-{number}", after=0.1)
        line.everyone_is_refused()
    assert line.wakes == ("claim", 3)
    assert line.turn_after(3) == "claim"


def test_refusal_in_the_moment_in_which_the_quota_counts_what_left_keeps_the_turn() -> None:
    line = Bench("claim", "a")
    line.everyone_is_refused()
    line.pod_left()
    begun, tries = line.now, 0
    while (turn := line.turn_after()) != "a":
        if turn == "claim":
            line.refused(box("claim"), FULL)
            tries += 1
        else:
            assert line.wakes == ("claim", REST.total_seconds())
            line.now += REST
    assert (tries, line.now - begun) == (SETTLES // REST + 1, SETTLES), "and after the moment it is passed on"


def test_pods_that_leave_all_the_time_do_not_let_the_line_rest_for_ever() -> None:
    line = Bench("claim", "a")
    line.everyone_is_refused()
    for _ in range(10):
        line.pod_left()
        if line.turn_after() == "claim":
            line.refused(box("claim"), FULL)
        if line.turn_after() == "a":
            break
        line.now += REST
    assert line.now <= NOW + SETTLES


def test_whoever_fails_passes_the_turn_on() -> None:
    line = Bench("claim", "a")
    line.failed("uid-claim")
    assert line.turn_after() == "a"
    line.failed("uid-of-nobody")
    assert line.turn_after() == "a"


def test_sandbox_that_is_claimed_while_it_waits_waits_as_a_claim() -> None:
    line = Bench("a", "b")
    line._join(box("a", claimed=0))
    assert set(line._waiters) == {sandbox("a"), pool("b")}
    assert line.turn_after() == "a"


def test_line_without_anybody_asks_nobody() -> None:
    line = Bench("a")
    line.gone("uid-a")
    assert line.is_empty()
    assert line.turn_after() is None
    assert (line._waiters, line._whose) == ({}, {})


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
    line = Bench(waits, pools=has)
    assert line.giver_after() is None, "it may find room by itself"
    line.failed(f"uid-{waits}")
    found = line.giver_after()
    assert (found[0] if found else None) == (pool(giver) if giver else None)


@pytest.mark.parametrize(("amount", "helps"), [("50", True), ("51", False)])
def test_nothing_is_given_up_for_what_is_larger_than_the_whole_quota(amount: str, *, helps: bool) -> None:
    line = Bench("claim")
    said = "exceeded quota: q, requested: limits.cpu={}, used: limits.cpu=9, limited: limits.cpu=50"
    line.refused(box("claim"), said.format(amount))
    assert (line.giver_after() is not None) is helps
    line.refused(box("claim"), said.format(1))
    assert line.giver_after() is not None, "it asks for less by now"


def test_place_that_did_not_help_is_followed_by_another_ever_later() -> None:
    line, waits = Bench("claim"), []
    line.everyone_is_refused()
    for _ in range(8):
        assert line.giver_after() == (pool("a"), sandbox("claim"))
        line.gave(sandbox("claim"))
        wait = line._waiters[sandbox("claim")].next_gift - line.now
        assert line.giver_after(wait.total_seconds() - 1) is None
        line.now += timedelta(seconds=1)
        waits.append(wait / GIVES_AGAIN)
    assert waits == [1, 2, 4, 8, 16, 32, 64, 64]


def test_pool_that_comes_while_a_place_is_on_its_way_waits_for_that() -> None:
    line = Bench("claim")
    line.everyone_is_refused()
    line.gave(sandbox("claim"))
    line.joins("a")
    assert line.turn_after() is None
    assert line.wakes == ("claim", LEAVES.total_seconds())
    assert line.turn_after(6) is None, "nor is time a sign of room"
    assert line.turn_after(LEAVES.total_seconds() - 6) is not None, "but for a pod that does not leave"
    line.everyone_is_refused()
    line.pod_left()
    assert line.turn_after() == "claim"


def test_place_that_was_given_up_goes_to_nobody_else_while_the_quota_still_counts_it() -> None:
    line = Bench("claim", "a")
    line.everyone_is_refused()
    line.gave(sandbox("claim"))
    line.joins("later", after=1)
    line.pod_left()
    line.refused(box("claim"), FULL)
    assert line.turn_after() is None
    assert line.turn_after(1) == "claim"


def test_second_of_two_places_that_were_given_up_goes_to_nobody_else_while_its_pod_is_leaving() -> None:
    line = Bench("x", "y", "b", pools={"a": (4, 4), "b": (0, 4)})
    assert line.everyone_is_refused() == ["x", "y", "b"]
    for name in ("x", "y"):
        assert line.giver_after() == (pool("a"), sandbox(name))
        line.gave(sandbox(name))
    line.pod_left()
    assert line.turn_after() == "x"
    line.let_in(box("x").metadata.uid)
    assert line.turn_after() == "y"
    line.refused(box("y"), FULL)
    assert line.turn_after() is None
    assert line.turn_after(REST.total_seconds()) == "y"
    line.pod_left()
    assert line.turn_after() == "y"


def test_claim_that_comes_once_a_place_was_taken_is_believed_to_be_refused() -> None:
    line = Bench("a", "b")
    line.everyone_is_refused()
    line.pod_left()
    line.let_in("uid-b")
    line.joins("claim", after=1)
    line.refused(box("claim"), FULL)
    assert line.giver_after() is not None


def test_claim_that_no_node_takes_gets_a_place_keeps_the_nodes_for_a_while_and_asks_for_no_quota() -> None:
    line = Bench()
    assert line.held(box("claim", lacks_node=True), wants=False) is None
    assert line.is_empty()
    assert line.turn_after() is None
    assert line.giver_after() == (pool("a"), sandbox("claim"))
    assert line.neighbours(pool("a")).nodes_yield_until == NOW + NODES_YIELD
    line.gone("uid-claim")
    yields = line.neighbours(pool("a")).nodes_yield_until
    assert yields is not None
    assert yields < NOW


def test_claim_that_waits_behind_others_for_a_node_does_not_keep_the_turn_for_the_quota() -> None:
    line = Bench("claim", "a")
    for number in range(MOST):
        line.held(box(f"many-{number}", lacks_node=True), wants=False, placed=False)
    assert line.turn_after() == "claim"
    held = line.held(box("claim"), wants=True)
    assert held is not None
    assert held.reason == Reason.UNSCHEDULABLE
    assert line.turn_after() == "a"


def test_those_who_wait_for_their_turn_are_not_woken_again_and_again() -> None:
    line = Bench(pools={})
    boxes = [box(f"box-{n:03}") for n in range(100)]
    line.refused(boxes[0], FULL)
    for each in boxes[1:]:
        held = line.held(each, wants=True)
        # The second is asked, and the others have to wait for what is said to it.
        assert held is None or held.until >= NOW + timedelta(seconds=60)
    assert set(line.soon) == {"box-001"}
    assert line.later == [("box-000", NOW + timedelta(seconds=5))]


def test_one_of_them_wakes_all_when_time_is_a_sign_of_room() -> None:
    line = Bench(pools={})
    for number in range(3):
        line.refused(box(f"box-{number}"), FULL)
    assert line.soon == []
    assert line.later == [("box-0", NOW + timedelta(seconds=5))] * 3
