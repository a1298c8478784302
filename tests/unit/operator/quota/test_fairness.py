"""Pools of one namespace that share what there is: a quota that is full, nodes that are, and claims that come first."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from sandpod_api import names
from sandpod_api.conditions import ConditionType, Reason, find
from sandpod_kube.errors import DeniedError, UnreachableError
from sandpod_kube.resources import PODS, POOLS, SANDBOXES, TEMPLATES, Key, Resource
from support.operator.world import SPACE, World, ended, metadata, running, sandbox_object, template_object

Pools = dict[str, int]


class Short(World):
    """A namespace with a quota of so many pods, and a cluster that tells of every pod that goes."""

    def __init__(self, quota: int, *, lag: int = 0) -> None:
        super().__init__()
        self.quota = quota
        self.lag = timedelta(seconds=lag)  # for which the quota still counts what is gone
        self.went: list[datetime] = []
        self.api.refuse = self.check

    def check(self, resource: Resource) -> None:
        counted = len(self.named("Pod")) + sum(self.now < time + self.lag for time in self.went)
        if resource.kind == "Pod" and counted >= self.quota:
            raise DeniedError(403, "Forbidden", "exceeded quota: pods, requested: 1")

    async def with_pools(self, pools: Pools) -> None:
        self.close_namespace()
        await self.given(TEMPLATES, template_object())
        for name, replicas in pools.items():
            await self.add_pool(name, replicas)
        await self.calm()

    async def add_pool(self, name: str, replicas: int, template: str = "python") -> None:
        spec = {"templateRef": {"name": template}, "replicas": replicas}
        await self.given(POOLS, {"metadata": metadata(name), "spec": spec})

    async def calm(self) -> None:
        """Tell of pods that went and let all others run, until nothing changes any more."""
        for _ in range(50):
            before = len(self.api.writes)
            for key in self.store.keys(PODS):
                if key not in self.api.objects:
                    self.went.append(self.now)
                    self.dispatcher.lost(key, self.store.uid_of(key))
            await self.start_all()
            await self.after(1)
            if len(self.api.writes) == before:
                return
        raise AssertionError("it never comes to rest")

    def warm(self) -> Counter[str]:
        """How many sandboxes of each pool have a pod."""
        pods = set(self.named("Pod"))
        boxes = [self.sandbox(name) for name in self.named("Sandbox") if name in pods]
        return Counter(box.metadata.labels[names.LABEL_POOL] for box in boxes if box.spec.claim is None)

    def waiting(self) -> Counter[str]:
        """How many sandboxes of each pool have none."""
        pods = set(self.named("Pod"))
        boxes = [self.sandbox(name) for name in self.named("Sandbox") if name not in pods]
        return Counter(box.metadata.labels.get(names.LABEL_POOL, "claim") for box in boxes)

    async def claim_from(self, pool: str) -> str:
        name = next(n for n in self.named("Sandbox") if self.is_warm_of(n, pool))
        await self.claim(name)
        return name

    def is_warm_of(self, name: str, pool: str) -> bool:
        box = self.sandbox(name)
        return box.spec.claim is None and box.status.phase == "Warm" and box.metadata.labels[names.LABEL_POOL] == pool

    async def cold_start(self, name: str) -> None:
        """A claim that no warm sandbox meets."""
        made = sandbox_object(name, claimed=0)
        made["metadata"]["creationTimestamp"] = made["spec"]["claim"]["time"]
        await self.given(SANDBOXES, made)

    def said(self, pool: str) -> str:
        found = find(self.pool(pool).status.conditions, ConditionType.PROGRESSING)
        return found.message if found is not None else ""


async def short(quota: int, *, lag: int = 0, **pools: int) -> Short:
    world = Short(quota, lag=lag)
    await world.with_pools(pools)
    return world


@pytest.mark.parametrize("lag", [0, 3])
async def test_pool_that_comes_later_gets_a_place_of_one_that_has_all(lag: int) -> None:
    world = await short(4, lag=lag, first=10)
    assert world.warm() == {"first": 4}
    await world.add_pool("second", 2)
    for _ in range(10):
        await world.calm()
    assert world.warm() == {"first": 3, "second": 1}
    await world.after(3600)
    await world.calm()
    assert world.warm() == {"first": 3, "second": 1}, "and it stays so"


async def test_each_place_that_comes_free_goes_to_the_pool_that_has_the_least_of_what_it_wants() -> None:
    world = await short(12, large=8, small=4)
    assert world.warm() == {"large": 8, "small": 4}
    held = [await world.claim_from(pool) for pool in ["large"] * 6 + ["small"] * 2]
    await world.calm()
    assert world.warm() == {"large": 2, "small": 2}
    order: list[str] = []
    for name in held:
        before = world.warm()
        await world.gone(Key("Sandbox", SPACE, name))
        await world.calm()
        order += (world.warm() - before).elements()
    # Where both have the same part of what they want, the name decides.
    assert order == ["large", "large", "large", "small", "large", "large", "small", "large"]


async def test_claim_goes_before_all_pools_and_a_warm_sandbox_is_given_up_for_it() -> None:
    world = await short(3, a=2, b=2)
    assert world.warm().total() == 3
    await world.cold_start("urgent")
    await world.calm()
    assert "urgent" in world.named("Pod")
    assert world.sandbox("urgent").status.phase == "Ready"
    assert world.warm() == {"a": 1, "b": 1}
    world.api.writes.clear()
    await world.gone(Key("Sandbox", SPACE, "urgent"))
    await world.calm()
    assert world.warm().total() == 3


async def test_warm_sandbox_whose_deletion_failed_is_given_up_at_the_next_try() -> None:
    world = await short(2, a=2)
    delete, tries = world.api.delete, 0

    async def fails_once(*which: Any) -> dict[str, Any]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise UnreachableError("no answer")
        return await delete(*which)

    world.api.delete = fails_once  # type: ignore[method-assign,assignment]  # an API server that does not answer
    await world.cold_start("urgent")
    begun = world.now
    await world.calm()
    assert world.sandbox("urgent").status.phase == "Ready"
    assert world.now - begun < timedelta(seconds=30)


async def test_claim_takes_no_pools_last_one_while_another_has_more() -> None:
    world = await short(4, small=1, large=8)
    assert world.warm() == {"small": 1, "large": 3}
    await world.cold_start("urgent")
    await world.calm()
    assert world.warm() == {"small": 1, "large": 2}


async def test_claim_that_nothing_is_given_up_for_takes_the_next_place() -> None:
    world = await short(2, a=2)
    held = [await world.claim_from("a") for _ in range(2)]
    await world.calm()
    await world.cold_start("urgent")
    await world.calm()
    assert (world.warm(), set(world.waiting())) == ({}, {"a", "claim"})
    await world.gone(Key("Sandbox", SPACE, held[0]))
    await world.calm()
    assert world.sandbox("urgent").status.phase == "Ready"
    assert world.warm() == {}


async def test_claim_that_was_given_up_holds_nobody_up() -> None:
    world = await short(1, a=1)
    held = await world.claim_from("a")
    await world.cold_start("urgent")
    await world.calm()
    await world.gone(Key("Sandbox", SPACE, "urgent"))
    await world.gone(Key("Sandbox", SPACE, held))
    await world.calm()
    assert world.warm() == {"a": 1}


async def test_pool_that_no_place_is_large_enough_for_holds_up_nobody() -> None:
    world = await short(4, good=3)
    check = world.api.refuse
    huge = {**template_object("huge"), "metadata": metadata("huge")}
    await world.given(TEMPLATES, huge)
    making: list[str] = []
    create = world.api.create

    async def noted(resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        making[:] = [manifest["metadata"]["name"]]
        return await create(resource, manifest)

    def refuse(resource: Resource) -> None:
        if resource.kind == "Pod" and making[0].startswith("huge"):
            raise DeniedError(403, "Forbidden", "exceeded quota: limits.cpu, requested: 1k")
        if check is not None:
            check(resource)

    world.api.create, world.api.refuse = noted, refuse  # type: ignore[method-assign]  # an API server that sees names
    await world.add_pool("huge", 2)
    await world.calm()
    # One is given up for it, in vain, and taken back; then more and more rarely.
    assert world.warm() == {"good": 3}
    world.api.writes.clear()
    for _ in range(360):
        await world.after(10)
        await world.calm()
    assert world.warm() == {"good": 3}
    assert world.api.writes.count(("create", "Sandbox")) < 10
    name = await world.claim_from("good")
    await world.gone(Key("Sandbox", SPACE, name))
    await world.calm()
    assert world.warm() == {"good": 3}


async def test_pool_that_can_not_start_pods_asks_rarely_and_says_why() -> None:
    world = await short(0, a=100, b=100)
    assert world.waiting() == {"a": 4, "b": 4}
    assert world.api.writes.count(("create", "Pod")) <= 20
    for pool in ("a", "b"):
        assert world.said(pool).startswith("QuotaExceeded: ")
        assert "exceeded quota" in world.said(pool)
        assert world.said(pool).endswith("then to the pool with the smallest share of its replicas.")
    world.api.writes.clear()
    for _ in range(3600):
        await world.after(1)
    assert world.api.writes.count(("create", "Pod")) < 50
    assert world.api.writes.count(("create", "Sandbox")) == 0


async def test_raised_quota_is_shared_though_only_one_pool_finds_out() -> None:
    world = await short(0, a=6, b=6, c=6)
    world.quota = 9
    await world.after(300)
    await world.calm()
    assert world.warm() == {"a": 3, "b": 3, "c": 3}


async def test_pool_that_waits_for_its_turn_and_has_nothing_to_try_with_says_so() -> None:
    world = await short(1, a=1)
    await world.add_pool("b", 1)
    await world.calm()
    assert world.pool("b").status.reason == Reason.POOL_BLOCKED
    assert "claims first" in world.said("b")


def unschedulable() -> dict[str, Any]:
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: no cpu."}
    return {"phase": "Pending", "conditions": [why]}


async def no_node_takes(world: World) -> None:
    """The scheduler has looked at every pod that has no node, until nothing changes any more."""
    for _ in range(30):
        before = len(world.api.writes)
        for key, pod in list(world.api.objects.items()):
            if key.kind == "Pod" and "status" not in pod:
                await world.change(key, status=unschedulable())
        await world.after(1)
        if len(world.api.writes) == before:
            return
    raise AssertionError("it never comes to rest")


async def test_pools_that_share_full_nodes_have_one_pod_each_in_the_schedulers_queue() -> None:
    world = Short(1000)
    world.close_namespace()
    await world.given(TEMPLATES, template_object())
    await world.add_pool("a", 50)
    await no_node_takes(world)
    # Alone, it has several wait, which autoscalers of nodes go by.
    assert world.warm() == {"a": 4}
    await world.add_pool("b", 50)
    await no_node_takes(world)
    assert world.warm() == {"a": 1, "b": 1}
    assert "Unschedulable: " in world.said("a")


async def test_pools_leave_the_schedulers_queue_to_a_claim() -> None:
    world = Short(1000)
    world.close_namespace()
    await world.given(TEMPLATES, template_object())
    await world.add_pool("a", 50)
    await no_node_takes(world)
    await world.cold_start("urgent")
    await no_node_takes(world)
    assert world.named("Pod") == ["urgent"]
    assert "Claimed sandboxes are waiting for a node" in world.said("a")
    await world.gone(Key("Sandbox", SPACE, "urgent"))
    await no_node_takes(world)
    assert world.warm() == {"a": 4}


async def test_claim_that_no_node_takes_gets_the_place_of_a_warm_sandbox() -> None:
    world = await short(1000, a=2, b=3)
    assert world.warm() == {"a": 2, "b": 3}
    await world.cold_start("urgent")
    await world.pod_becomes("urgent", unschedulable())
    assert world.warm().total() == 4, "one is given up, and none is made in its place"
    await world.pod_becomes("urgent", running())
    await world.calm()
    assert world.warm() == {"a": 2, "b": 3}


async def test_claim_that_no_node_ever_takes_holds_up_pools_for_a_moment_alone() -> None:
    world = await short(1000, a=2, b=3)
    await world.cold_start("hopeless")
    await world.pod_becomes("hopeless", unschedulable())
    held = [await world.claim_from("b") for _ in range(2)]
    for name in held:
        await world.gone(Key("Sandbox", SPACE, name))
    await world.after(11)
    await world.calm()
    assert world.warm() == {"a": 2, "b": 3}


async def test_pod_that_ended_makes_room_though_it_is_still_there() -> None:
    world = await short(1, a=1)
    held = await world.claim_from("a")
    await world.calm()
    assert world.waiting() == {"a": 1}
    world.quota = 2  # The quota counts no pod that has ended.
    await world.pod_becomes(held, ended(1))
    assert world.warm() == {"a": 1}


steps = st.lists(st.tuples(st.sampled_from(["claim", "end", "cold", "wait"]), st.integers(0, 5)), max_size=12)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=4), st.integers(0, 12), steps)
@hypothesis_settings(max_examples=40, deadline=None)
async def test_nothing_is_left_unused_nobody_is_left_with_nothing_and_it_comes_to_rest(
    wishes: list[int], quota: int, history: list[tuple[str, int]]
) -> None:
    pools = {f"p{i}": wish for i, wish in enumerate(wishes)}
    world = await short(quota, **pools)
    held: list[str] = []
    for number, (step, choice) in enumerate(history):
        pool = f"p{choice % len(pools)}"
        if step == "claim" and any(world.is_warm_of(name, pool) for name in world.named("Sandbox")):
            held.append(await world.claim_from(pool))
        elif step == "end" and held:
            await world.gone(Key("Sandbox", SPACE, held.pop(choice % len(held))))
        elif step == "cold":
            held.append(f"cold{number}")
            await world.cold_start(held[-1])
        else:
            await world.after(60)
        await world.calm()
    await world.after(301)
    await world.calm()
    warm, used = world.warm(), len(world.named("Pod"))
    claims_wait = [name for name in held if name not in world.named("Pod")]
    lacking = [pool for pool, wish in pools.items() if warm[pool] < wish]
    assert used <= quota
    if lacking or claims_wait:
        assert used == quota, "no place is left unused"
    if claims_wait:
        assert not warm, "claims go first"
    if any(count > 1 for count in warm.values()):
        assert all(warm[pool] for pool in lacking), "no pool has nothing while another has more than one"


@pytest.mark.parametrize("quota", [0, 3, 7, 20])
async def test_filling_many_pools_costs_no_more_than_one_refusal_of_each_for_a_place(quota: int) -> None:
    world = await short(quota, **{f"p{i}": 5 for i in range(8)})
    refused = world.api.writes.count(("create", "Pod")) - len(world.named("Pod"))
    assert refused <= 8 * (quota + 1 + 3), "three more of each in the first batch"
    assert len(world.named("Pod")) == quota
    shares = [world.warm()[f"p{i}"] for i in range(8)]
    assert min(shares) >= min(1, quota // 8), "whoever had less than others when the quota was full got one of theirs"
