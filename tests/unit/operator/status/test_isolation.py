"""A sandbox that finds its network open: it is never handed out, unless the operator is set to allow that."""

from typing import Any

from sandpod_api import names
from sandpod_api.conditions import ConditionType, Reason, find
from sandpod_kube.resources import POOLS, SANDBOXES, TEMPLATES, Key
from support.operator.world import SPACE, World, ended, metadata, running, sandbox_object, template_object

POD = Key("Pod", SPACE, "box")
OPEN = ended(names.EXIT_NOT_ISOLATED, message="NetworkOpen: reached 10.96.0.1:443")


async def new_world(**changes: Any) -> World:
    world = World(**changes)
    world.close_namespace()
    await world.given(TEMPLATES, template_object())
    await world.given(SANDBOXES, sandbox_object(claimed=0))
    return world


def environment(world: World) -> dict[str, str]:
    [container] = world.api.objects[POD]["spec"]["containers"]
    return {v["name"]: v["value"] for v in container["env"] if "value" in v}


def isolated(world: World) -> tuple[str, str, str]:
    found = find(world.sandbox().status.conditions, ConditionType.NETWORK_ISOLATED)
    assert found is not None
    return found.status, found.reason, found.message


def counted(world: World, outcome: str) -> float | None:
    return world.metrics.registry.get_sample_value("sandpod_sandboxes_open_network_total", {"outcome": outcome})


async def test_sandbox_with_an_open_network_is_refused_unless_that_is_allowed() -> None:
    world = await new_world()
    assert names.ENV_ALLOW_OPEN_NETWORK not in environment(world)
    await world.pod_becomes("box", OPEN)
    status = world.sandbox().status
    assert (status.phase, status.reason) == ("Failed", Reason.NETWORK_OPEN)
    assert isolated(world)[:2] == ("False", "NetworkOpen")
    assert [e.reason for e in world.events if e.kind == "Warning"] == ["NetworkOpen"]
    assert (counted(world, "ended"), counted(world, "allowed")) == (1, 0)


async def test_allowed_sandbox_gets_a_pod_that_serves_and_says_that_it_is_open() -> None:
    world = await new_world(allow_open_network=True)
    assert names.ENV_ALLOW_OPEN_NETWORK not in environment(world)
    first = world.api.objects[POD]["metadata"]["uid"]
    await world.pod_becomes("box", OPEN)
    assert world.api.objects[POD]["metadata"]["uid"] != first
    assert environment(world)[names.ENV_ALLOW_OPEN_NETWORK] == "1"
    await world.pod_becomes("box", running())
    assert world.sandbox().status.phase == "Ready"
    status, reason, message = isolated(world)
    assert (status, reason) == ("False", "NetworkOpen")
    assert "10.96.0.1:443" in message
    assert [e.reason for e in world.events if e.kind == "Warning"] == ["OpenNetworkAllowed"]
    assert (counted(world, "allowed"), counted(world, "ended")) == (1, 0)


async def test_operator_that_restarts_between_the_two_pods_says_the_same() -> None:
    world = await new_world(allow_open_network=True)
    await world.pod_becomes("box", OPEN)
    world.start()
    await world.dispatcher.resync()
    await world.settle()
    await world.pod_becomes("box", running())
    assert (world.sandbox().status.phase, isolated(world)[0]) == ("Ready", "False")


async def test_allowance_is_for_the_start_alone_and_what_opens_later_ends() -> None:
    world = await new_world(allow_open_network=True)
    await world.pod_becomes("box", running())
    assert isolated(world)[:2] == ("True", "Probed")
    await world.pod_becomes("box", OPEN)
    assert (world.sandbox().status.phase, world.sandbox().status.reason) == ("Failed", "NetworkOpen")
    assert counted(world, "ended") == 1


async def test_runner_that_does_not_know_the_allowance_is_not_tried_for_ever() -> None:
    world = await new_world(allow_open_network=True)
    await world.pod_becomes("box", OPEN)
    await world.pod_becomes("box", OPEN)
    assert (world.sandbox().status.phase, world.sandbox().status.reason) == ("Failed", "NetworkOpen")


async def test_warm_sandbox_whose_network_opens_is_replaced_and_never_claimed() -> None:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object())
    await world.given(POOLS, {"metadata": metadata("warm"), "spec": {"templateRef": {"name": "python"}, "replicas": 1}})
    [first] = world.named("Sandbox")
    await world.start_all()
    assert world.sandbox(first).status.phase == "Warm"
    await world.pod_becomes(first, OPEN)
    assert world.sandbox(first).status.phase == "Failed"
    await world.after(world.settings.refused_retry)
    [second] = world.named("Sandbox")
    assert second != first
