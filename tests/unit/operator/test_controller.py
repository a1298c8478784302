"""Who is woken by what, and what sweep and resync find."""

import pytest

from operator_world import SPACE, World, metadata, pod_object, sandbox_object, template_object
from sandpod_api import names
from sandpod_operator.resources import PODS, POOLS, SANDBOXES, TEMPLATES
from sandpod_operator.store import Store


def waiting(world: World) -> set[tuple[str, str]]:
    return {(key.kind, key.name) for key in world.queue._waiting}


def test_sandbox_wakes_itself_and_its_pool_even_when_it_leaves_it() -> None:
    world = World()
    labels = {names.LABEL_POOL: "warm"}
    world.controller.saw(SANDBOXES, {**sandbox_object(), "metadata": metadata("box", labels=labels)})
    assert waiting(world) == {("Sandbox", "box"), ("SandboxPool", "warm")}
    world.queue._waiting.clear()
    world.controller.saw(SANDBOXES, {**sandbox_object(), "metadata": metadata("box", resourceVersion="2")})
    assert waiting(world) == {("Sandbox", "box"), ("SandboxPool", "warm")}


def test_pod_wakes_its_sandbox() -> None:
    world = World()
    world.controller.saw(PODS, pod_object())
    assert waiting(world) == {("Sandbox", "box")}


def test_template_wakes_its_pools_and_those_sandboxes_that_have_no_pod_or_a_profile_of_it() -> None:
    world = World()
    world.store.put(POOLS, {"metadata": metadata("warm"), "spec": {"templateRef": {"name": "python"}}})
    world.store.put(POOLS, {"metadata": metadata("other"), "spec": {"templateRef": {"name": "other"}}})
    world.store.put(SANDBOXES, sandbox_object("without"))
    world.store.put(SANDBOXES, sandbox_object("with"))
    world.store.put(PODS, pod_object("with"))
    world.store.put(SANDBOXES, sandbox_object("open", network="web"))
    world.store.put(PODS, pod_object("open"))
    world.controller.saw(TEMPLATES, template_object())
    assert waiting(world) == {
        ("SandboxTemplate", "python"),
        ("SandboxPool", "warm"),
        ("Sandbox", "without"),
        ("Sandbox", "open"),
    }


def test_event_that_is_no_news_wakes_nobody() -> None:
    world = World()
    world.store.put(SANDBOXES, sandbox_object())
    world.controller.saw(SANDBOXES, sandbox_object())
    assert waiting(world) == set()


def test_object_that_cannot_be_read_is_left_alone_and_said(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.controller.saw(SANDBOXES, {"metadata": metadata("box"), "spec": {}})
    assert waiting(world) == set()
    assert "Sandbox boxes/box can't be read" in caplog.text


async def test_sweep_deletes_a_pod_that_has_long_been_without_its_sandbox() -> None:
    world = World()
    orphan = pod_object()
    orphan["metadata"]["ownerReferences"] = []
    world.store.put(PODS, world.api.set(PODS, orphan))
    await world.controller.sweep()
    await world.after(world.settings.orphan_grace - 1)
    await world.controller.sweep()
    assert world.named("Pod") == ["box"]
    await world.after(1)
    await world.controller.sweep()
    assert world.named("Pod") == []


async def test_sweep_asks_the_api_server_before_it_takes_a_pod() -> None:
    world = World()
    world.store.put(PODS, world.api.set(PODS, pod_object()))
    world.api.set(SANDBOXES, sandbox_object())
    await world.controller.sweep()
    await world.after(world.settings.orphan_grace)
    await world.controller.sweep()
    assert world.named("Pod") == ["box"]
    assert world.store.sandbox(SPACE, "box") is not None


async def test_resync_repairs_what_a_watch_lost_counts_it_and_wakes_everyone() -> None:
    world = World()
    world.store.put(SANDBOXES, {**sandbox_object("gone"), "metadata": metadata("gone")})
    world.api.set(SANDBOXES, sandbox_object("missed"))
    world.api.set(POOLS, {"metadata": metadata("warm"), "spec": {"templateRef": {"name": "python"}}})
    world.api.set(PODS, pod_object("missed"))
    await world.controller.resync()
    expected = {("Sandbox", "missed"), ("Sandbox", "gone"), ("SandboxPool", "warm"), ("Namespace", "")}
    assert waiting(world) == expected
    missed = world.metrics.registry.get_sample_value("sandpod_operator_watch_missed_total", {"kind": "Sandbox"})
    assert missed == 2


async def test_resync_forgets_notes_about_what_is_gone() -> None:
    world = World()
    world.notes.failures["uid-of-a-pool-that-is-gone"] = 3
    await world.controller.resync()
    assert world.notes.failures == {}


async def test_store_and_server_agree_after_a_resync() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.api.set(SANDBOXES, sandbox_object(name))
    await world.controller.resync()
    other = Store()
    other.replace(SANDBOXES, SPACE, await world.api.list(SANDBOXES, SPACE))
    assert list(world.store.all_sandboxes(SPACE)) == list(other.all_sandboxes(SPACE))
