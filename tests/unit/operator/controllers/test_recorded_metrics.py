"""What an autoscaler reads of a pool: each claim is counted once, and nothing is told of a pool that is gone."""

from typing import Any

import pytest

from sandpod_api import names
from sandpod_api.types import Claim, Workspace
from sandpod_gateway.backends.kubernetes.claims.patches import Wanted, new_sandbox
from sandpod_kube.resources import POOLS, SANDBOXES, TEMPLATES, Key
from support.operator.world import NOW, SPACE, World, metadata, running, sandbox_object, template_object

POOL = Key("SandboxPool", SPACE, "warm")


async def world_with(*pools: str, replicas: int = 2) -> World:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object())
    for pool in pools:
        spec = {"templateRef": {"name": "python"}, "replicas": replicas}
        await world.given(POOLS, {"metadata": metadata(pool), "spec": spec})
    await world.start_all()
    return world


def claims(world: World, pool: str = "warm", origin: str = "pool") -> float | None:
    labels = {"namespace": SPACE, "pool": pool, "origin": origin}
    return world.metrics.registry.get_sample_value("sandpod_pool_claims_total", labels)


def told(world: World) -> set[str]:
    """Return the pools that any series names."""
    return {s.labels["pool"] for m in world.metrics.registry.collect() for s in m.samples if "pool" in s.labels}


def made_for_claim(
    name: str, *, template: str = "python", network: str = names.NETWORK_NONE, workspace: Workspace | None = None
) -> dict[str, Any]:
    """A Sandbox as a gateway makes it while none is warm."""
    claim = Claim(owner="alice", session="", time=NOW)
    made = new_sandbox(name, Wanted(template, network, claim, lifetime=None), "0123456789abcdef", workspace)
    return {**made, "metadata": {**metadata(name), **made["metadata"]}}


async def test_pool_tells_what_it_should_have_what_it_has_and_no_claim_yet() -> None:
    world = await world_with("warm", replicas=3)
    value = world.metrics.registry.get_sample_value
    labels = {"namespace": SPACE, "pool": "warm"}
    assert (value("sandpod_pool_wanted", labels), value("sandpod_pool_ready", labels)) == (3, 3)
    assert (claims(world), claims(world, origin="direct")) == (0, 0)


async def test_claim_is_counted_once_for_its_pool() -> None:
    world = await world_with("warm", "other")
    first, second = (name for name in world.named("Sandbox") if name.startswith("warm-"))
    await world.claim(first)
    assert (claims(world), claims(world, "other")) == (1, 0)
    # Whatever happens to the one that is held, and whoever tells of it again.
    await world.change(Key("Sandbox", SPACE, first), status={})
    await world.dispatcher.resync()
    await world.settle()
    await world.gone(Key("Sandbox", SPACE, first))
    assert claims(world) == 1
    await world.claim(second)
    assert (claims(world), claims(world, origin="direct")) == (2, 0)


async def test_claim_that_only_a_full_list_shows_is_counted_once() -> None:
    world = await world_with("warm")
    name, _ = world.named("Sandbox")
    old = world.api.objects[Key("Sandbox", SPACE, name)]
    held = {**old["spec"], "claim": sandbox_object(claimed=0)["spec"]["claim"]}
    world.api.set(SANDBOXES, {**old, "spec": held})
    await world.dispatcher.resync()
    await world.dispatcher.resync()
    assert claims(world) == 1


async def test_status_of_a_pool_counts_its_claims_across_restarts_and_writes_at_most_once_a_second() -> None:
    def counted() -> tuple[int, int, bool]:
        claims = world.pool().status.claims
        return claims.warm, claims.cold, claims.since == NOW

    world = await world_with("warm")
    assert counted() == (0, 0, True)
    await world.after(1)
    first, second = world.named("Sandbox")
    await world.claim(first)
    await world.claim(second)
    await world.given(SANDBOXES, made_for_claim("cold"))
    await world.start_all()
    await world.after(1)
    assert counted() == (2, 1, True)
    await world.dispatcher.resync()
    await world.after(1)
    assert counted() == (2, 1, True)
    third = next(name for name in world.named("Sandbox") if name.startswith("warm-") and name not in {first, second})
    world.start()
    await world.dispatcher.resync()
    await world.settle()
    await world.claim(third)
    await world.after(1)
    assert counted() == (3, 1, True)  # what the status says goes on, whoever counts
    # Another pool of that name begins anew.
    spec = {"templateRef": {"name": "python"}, "replicas": 0}
    await world.gone(POOL)
    await world.given(POOLS, {"metadata": metadata("warm", uid="another"), "spec": spec})
    await world.after(1)
    assert counted() == (0, 0, False)


async def test_restarted_operator_counts_from_nothing_and_none_of_what_was_claimed_before() -> None:
    world = await world_with("warm")
    before, after = world.named("Sandbox")
    await world.claim(before)
    world.start()
    await world.dispatcher.resync()
    await world.settle()
    assert claims(world) == 0
    await world.claim(after)
    assert claims(world) == 1


async def test_warm_sandbox_that_goes_unclaimed_is_no_claim() -> None:
    world = await world_with("warm")
    deleted, taken_out = world.named("Sandbox")
    await world.gone(Key("Sandbox", SPACE, deleted))
    meta = world.api.objects[Key("Sandbox", SPACE, taken_out)]["metadata"]
    await world.change(Key("Sandbox", SPACE, taken_out), metadata={**meta, "labels": {}})
    await world.change(POOL, spec={"templateRef": {"name": "python"}, "replicas": 0})
    assert claims(world) == 0


async def test_nothing_is_told_of_a_pool_that_is_gone_nor_of_one_that_only_a_label_names() -> None:
    world = await world_with("warm", "other")
    held = next(name for name in world.named("Sandbox") if name.startswith("warm-"))
    meta = {**world.api.objects[Key("Sandbox", SPACE, held)]["metadata"], "ownerReferences": []}
    await world.change(Key("Sandbox", SPACE, held), metadata=meta)
    await world.gone(POOL)
    assert told(world) == {"other"}
    await world.claim(held)
    await world.given(SANDBOXES, {**sandbox_object(), "metadata": metadata("box", labels={names.LABEL_POOL: "mine"})})
    await world.claim("box")
    assert told(world) == {"other"}
    # A full list wakes no pool that is not there, and so nobody would clean up.
    await world.given(SANDBOXES, {**sandbox_object("b"), "metadata": metadata("b", labels={names.LABEL_POOL: "mine"})})
    unheard = world.api.objects[Key("Sandbox", SPACE, "b")]
    world.api.set(SANDBOXES, {**unheard, "spec": sandbox_object(claimed=0)["spec"]})
    await world.dispatcher.resync()
    await world.settle()
    assert told(world) == {"other"}


async def test_sandbox_made_for_a_claim_is_counted_once_for_the_pool_that_was_empty() -> None:
    world = await world_with("warm", "other", replicas=0)
    await world.given(SANDBOXES, made_for_claim("cold"))
    assert claims(world, "other", "direct") == 0
    await world.start_all()
    # Both have its template: the first by name, since two autoscalers must not make room for one claim.
    assert (claims(world, "other", "direct"), claims(world, "warm", "direct")) == (1, 0)
    await world.pod_becomes("cold", running())
    world.start()
    await world.dispatcher.resync()
    await world.settle()
    assert claims(world, "other", "direct") == 0


@pytest.mark.parametrize(
    "made",
    [
        made_for_claim("cold", network="web"),
        made_for_claim("cold", workspace=Workspace(size="1Mi")),
        made_for_claim("cold", template="other"),
        sandbox_object("cold", claimed=0),
    ],
    ids=["network", "workspace", "template", "by hand"],
)
async def test_sandbox_that_no_warm_one_could_have_been_is_no_demand_of_a_pool(made: dict[str, Any]) -> None:
    world = await world_with("warm", replicas=0)
    profiles = [{"name": "web", "egress": [{"cidr": "192.0.2.0/24"}]}]
    await world.given(TEMPLATES, template_object(networkProfiles=profiles))
    await world.given(TEMPLATES, template_object("other"))
    await world.given(SANDBOXES, made)
    await world.start_all()
    assert world.sandbox("cold").status.phase == "Ready"
    assert claims(world, origin="direct") == 0
