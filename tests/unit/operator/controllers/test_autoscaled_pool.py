"""A pool that follows its claims, on an API server in memory: what is claimed in, sandboxes and status out."""

from typing import Any

from sandpod_api import names
from sandpod_api.conditions import ConditionType, find
from sandpod_api.types import Claim
from sandpod_gateway.backends.kubernetes.claims.patches import Wanted, new_sandbox
from sandpod_kube.errors import DeniedError
from sandpod_kube.resources import PODS, POOLS, SANDBOXES, TEMPLATES, Key, Resource
from support.operator.world import NOW, SPACE, World, metadata, template_object

POOL = Key("SandboxPool", SPACE, "warm")


async def world_with(**autoscale: int) -> World:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object())
    spec = {"templateRef": {"name": "python"}, "autoscale": autoscale}
    await world.given(POOLS, {"metadata": metadata("warm"), "spec": spec})
    await world.start_all()
    await world.after(1)
    return world


def warm(world: World) -> list[str]:
    """Return the names of the sandboxes that can be claimed."""
    return [name for name in world.named("Sandbox") if world.sandbox(name).status.phase == "Warm"]


async def claimed(world: World, seconds: int, each: int) -> int:
    """Claim so many in each of some seconds, as far as there are any, and return how many were."""
    met = 0
    for _ in range(seconds):
        for name in warm(world)[:each]:
            await world.claim(name)
            met += 1
        await world.start_all()
        await world.after(1)
    return met


def said(world: World) -> tuple[int | None, int, str]:
    status = world.pool().status
    limited = find(status.conditions, ConditionType.SCALING_LIMITED)
    return status.desired_replicas, status.ready_replicas, limited.reason if limited is not None else ""


async def test_pool_grows_with_its_claims_until_all_are_met_and_shrinks_when_they_end() -> None:
    world = await world_with(minReplicas=2, maxReplicas=60)
    assert said(world) == (2, 2, "DesiredWithinRange")
    await claimed(world, seconds=10, each=3)
    assert await claimed(world, seconds=5, each=3) == 15
    wanted, ready, reason = said(world)
    assert wanted is not None
    assert 5 <= wanted <= 60
    assert (ready, reason) == (wanted, "DesiredWithinRange")
    rate = world.pool().status.claims_per_second
    assert rate is not None
    assert rate >= 3
    held = {name for name in world.named("Sandbox") if world.sandbox(name).spec.claim is not None}
    for _ in range(200):
        await world.after(5)
    assert said(world) == (2, 2, "DesiredWithinRange")
    assert held <= set(world.named("Sandbox"))
    assert world.metrics.registry.get_sample_value("sandpod_pool_wanted", {"namespace": SPACE, "pool": "warm"}) == 2


async def test_new_operator_keeps_the_size_and_forgets_it_with_autoscale_only() -> None:
    world = await world_with(minReplicas=1, maxReplicas=60)
    await claimed(world, seconds=10, each=3)
    before = world.pool().status
    assert (before.desired_replicas or 0) > 4
    world.start()
    world.close_namespace()
    await world.dispatcher.resync()
    await world.settle()
    after = world.pool().status
    assert after.desired_replicas == before.desired_replicas
    assert len(warm(world)) == before.ready_replicas
    # Without autoscale it is as large as it says.
    await world.change(POOL, spec={"templateRef": {"name": "python"}, "replicas": 3})
    await world.after(1)
    status = world.pool().status
    assert (status.desired_replicas, status.claims_per_second, status.start_seconds) == (3, None, None)
    assert said(world) == (3, 3, "")
    assert world.state.demands == {}


async def test_claim_that_found_none_counts_too() -> None:
    world = await world_with(minReplicas=0, maxReplicas=5)
    assert said(world) == (0, 0, "DesiredWithinRange")
    for number in range(8):
        claim = Claim(owner="alice", session="", time=NOW)
        made = new_sandbox(f"cold-{number}", Wanted("python", names.NETWORK_NONE, claim, lifetime=None), "01234567")
        await world.given(SANDBOXES, {**made, "metadata": {**metadata(f"cold-{number}"), **made["metadata"]}})
        await world.start_all()
        await world.after(1)
    wanted, _, _ = said(world)
    assert wanted is not None
    assert 1 <= wanted <= 5


async def test_full_quota_holds_it_at_what_there_is() -> None:
    world = await world_with(minReplicas=1, maxReplicas=60)
    room = 12

    def refuse(resource: Resource) -> None:
        if resource is PODS and len(world.named("Pod")) >= room:
            raise DeniedError(
                403,
                "Forbidden",
                f"pods is forbidden: exceeded quota: pods, requested: pods=1, used: pods={room}, limited: pods={room}",
            )

    world.api.refuse = refuse
    await claimed(world, seconds=12, each=3)
    await world.after(6)
    wanted, _, reason = said(world)
    waiting: list[Any] = [n for n in world.named("Sandbox") if world.sandbox(n).status.reason == "QuotaExceeded"]
    assert reason == "PoolBlocked"
    assert wanted is not None
    assert wanted <= len(waiting) + len(warm(world)) + 1
    await world.after(60)
    assert [n for n in world.named("Sandbox") if world.sandbox(n).status.reason == "QuotaExceeded"] == waiting
