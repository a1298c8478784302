"""What happens while no operator runs is late afterwards, and nothing of it is lost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_kube.resources import POOLS, SANDBOXES, TEMPLATES, Key
from support.operator.world import SPACE, World, metadata, sandbox_object, template_object


@asynccontextmanager
async def no_operator(world: World) -> AsyncIterator[None]:
    """Nobody reacts to what is done meanwhile; then an operator starts that knows nothing."""

    async def nothing() -> None:
        """No operator works."""

    world.settle = nothing  # type: ignore[method-assign]
    yield
    del world.settle
    world.start()
    world.close_namespace()
    await world.dispatcher.resync()
    await world.settle()


async def held(world: World, name: str, **spec: object) -> None:
    """A sandbox that alice holds from now on."""
    made = sandbox_object(name, claimed=0, **spec)
    made["spec"]["claim"]["time"] = made["metadata"]["creationTimestamp"] = rfc3339(world.now)
    await world.given(SANDBOXES, made)


async def annotate(world: World, name: str, key: str, ahead: float) -> None:
    meta = world.api.objects[Key("Sandbox", SPACE, name)]["metadata"]
    noted = {**meta.get("annotations", {}), key: rfc3339(world.now + timedelta(seconds=ahead))}
    await world.change(Key("Sandbox", SPACE, name), metadata={**meta, "annotations": noted})


async def test_an_hour_without_an_operator_makes_things_late_and_loses_none() -> None:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object())
    pool = {"templateRef": {"name": "python"}, "replicas": 2}
    await world.given(POOLS, {"metadata": metadata("warm"), "spec": pool})
    for name in ("idle", "used", "busy", "deleted"):
        await held(world, name)
    await held(world, "lost", lifetime={"ttl": 7200, "idleTimeout": 7200})
    await held(world, "short", lifetime={"ttl": 1200, "idleTimeout": 1200})
    await world.start_all()
    warm = [name for name in world.named("Sandbox") if name.startswith("warm-")]
    assert len(warm) == 2

    async with no_operator(world):
        await world.after(1500)
        await world.claim(warm[0], ttl=7200, idleTimeout=7200)
        await annotate(world, "busy", names.ANNOTATION_BUSY_UNTIL, 4000)
        await held(world, "new", lifetime={"ttl": 7200, "idleTimeout": 7200})
        world.api.remove(Key("Pod", SPACE, "lost"))
        world.api.remove(Key("Sandbox", SPACE, "deleted"))
        world.api.remove(Key("NetworkPolicy", SPACE, names.POLICY_DENY_ALL))
        await world.after(1500)
        await annotate(world, "used", names.ANNOTATION_LAST_ACTIVITY, 0)
        await world.after(600)

    said = {
        name: (world.sandbox(name).status.phase, world.sandbox(name).status.reason) for name in world.named("Sandbox")
    }
    fresh = set(said) - {"idle", "used", "busy", "lost", "short", "new", *warm}
    assert said["idle"] == ("Expired", "IdleTimeout")
    assert said["short"] == ("Expired", "TTLExpired")
    assert said["lost"] == ("Failed", "NodeLost")
    assert {said[name] for name in ("used", "busy", warm[0])} == {("Ready", None)}
    assert said["new"][0] == "Pending"
    assert "deleted" not in said
    # The claimed one is its caller's still, and was replaced.
    claim = world.sandbox(warm[0]).spec.claim
    assert claim is not None
    assert claim.owner == "alice"
    assert len(fresh) == 1
    assert set(world.named("Pod")) == {"used", "busy", "new", *warm, *fresh}
    assert world.policy(names.POLICY_DENY_ALL)
