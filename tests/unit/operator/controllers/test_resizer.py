"""Pods that wait with low requests and get their own at the claim, on an API server in memory."""

from collections import Counter

import pytest

from sandpod_api.conditions import Condition, ConditionType, find
from sandpod_kube.errors import ClusterError, DeniedError, NotFoundError, OverloadedError, RefusedError
from sandpod_kube.resources import POOLS, TEMPLATES, Key
from support.operator.world import SPACE, World, metadata, template_object

FORBIDDEN = DeniedError(403, "Forbidden", 'pods "x" is forbidden: cannot patch resource "pods/resize"')
FULL = DeniedError(403, "Forbidden", "pods is forbidden: exceeded quota: all, requested: requests.memory=64Mi")
ABSENT = NotFoundError(404, "NotFound", "the server could not find the requested resource")
ODD = RefusedError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


async def world_with() -> tuple[World, str]:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object(warmRequests={"cpu": "10m", "memory": "64Mi"}))
    pool = {"templateRef": {"name": "python"}, "replicas": 1}
    await world.given(POOLS, {"metadata": metadata("warm"), "spec": pool})
    await world.start_all()
    await world.after(1)
    (name,) = world.named("Sandbox")
    world.api.writes.clear()
    return world, name


def requests(world: World, name: str) -> dict[str, str]:
    found: dict[str, str] = world.api.objects[Key("Pod", SPACE, name)]["spec"]["containers"][0]["resources"]["requests"]
    return found


def said(world: World, name: str) -> Condition:
    found = find(world.sandbox(name).status.conditions, ConditionType.RESIZED)
    assert found is not None
    assert world.sandbox(name).status.phase == "Ready"
    return found


def mine(world: World) -> Counter[str]:
    """Return the verbs of all that was written to the sandbox and its pod, but its claim."""
    return Counter(verb for verb, kind in world.api.writes if kind in {"Pod", "Sandbox"} and verb != "create")


async def test_claim_raises_requests_by_one_write_whatever_became_of_the_template() -> None:
    world, name = await world_with()
    before = dict(world.api.objects[Key("Pod", SPACE, name)]["spec"]["containers"][0]["resources"]["limits"])
    assert (requests(world, name)["cpu"], requests(world, name)["memory"]) == ("10m", "64Mi")
    assert find(world.sandbox(name).status.conditions, ConditionType.RESIZED) is None
    world.store.remove(Key("SandboxTemplate", SPACE, "python"))
    await world.claim(name)
    assert (requests(world, name)["cpu"], requests(world, name)["memory"]) == ("50m", "128Mi")
    assert world.api.objects[Key("Pod", SPACE, name)]["spec"]["containers"][0]["resources"]["limits"] == before
    assert (said(world, name).status, said(world, name).reason) == ("True", "Resized")
    assert mine(world) == {"patch": 1, "resize": 1, "patch_status": 1}
    await world.after(300)
    assert mine(world)["resize"] == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [(FORBIDDEN, "cannot patch"), (ABSENT, "Kubernetes has it from 1.33 on"), (ODD, "does not allow")],
    ids=["no right", "no such path", "no such method"],
)
async def test_what_can_not_be_raised_is_asked_for_once_and_the_sandbox_works_on(
    error: ClusterError, words: str
) -> None:
    world, name = await world_with()
    world.api.refuse_resize = error
    await world.claim(name)
    assert (said(world, name).status, said(world, name).reason) == ("False", "ResizeInfeasible")
    assert words in said(world, name).message
    await world.after(600)
    assert mine(world)["resize"] == 1
    assert requests(world, name)["memory"] == "64Mi"


async def test_full_quota_is_asked_again_until_there_is_room() -> None:
    world, name = await world_with()
    world.api.refuse_resize = FULL
    await world.claim(name)
    assert said(world, name).reason == "QuotaExceeded"
    await world.after(world.settings.refused_retry)
    assert mine(world)["resize"] == 2
    world.api.refuse_resize = None
    await world.after(60)
    assert said(world, name).reason == "Resized"
    assert world.state.resizes == {}
    await world.gone(Key("Sandbox", SPACE, name))
    assert mine(world)["resize"] == 3


async def test_server_that_can_not_answer_now_is_asked_again_as_after_any_error() -> None:
    world, name = await world_with()
    world.api.refuse_resize = OverloadedError(503, "ServiceUnavailable", "later")
    await world.claim(name)
    world.api.refuse_resize = None
    await world.after(60)
    assert said(world, name).reason == "Resized"


async def test_pod_that_goes_at_that_moment_is_lost_as_at_any_other() -> None:
    world, name = await world_with()
    world.api.refuse_resize = NotFoundError(404, "NotFound", f'pods "{name}" not found')
    await world.claim(name)
    assert (world.sandbox(name).status.phase, world.sandbox(name).status.reason) == ("Failed", "NodeLost")
