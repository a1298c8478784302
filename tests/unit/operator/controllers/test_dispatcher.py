"""Who is woken by what, and what sweep and resync find."""

import asyncio
from typing import Any

import pytest

from sandpod_api import names
from sandpod_kube.errors import UnreachableError
from sandpod_kube.resources import PODS, POOLS, SANDBOXES, TEMPLATES, Resource
from sandpod_operator.cache.object_cache import Store
from sandpod_operator.model.observed import PoolBackoff
from support.operator.world import SPACE, World, metadata, pod_object, sandbox_object, template_object


def waiting(world: World) -> set[tuple[str, str]]:
    return {(key.kind, key.name) for key in world.queue._waiting}


def test_sandbox_wakes_itself_and_its_pool_even_when_it_leaves_it() -> None:
    world = World()
    labels = {names.LABEL_POOL: "warm"}
    world.dispatcher.saw(SANDBOXES, {**sandbox_object(), "metadata": metadata("box", labels=labels)})
    assert waiting(world) == {("Sandbox", "box"), ("SandboxPool", "warm")}
    world.queue._waiting.clear()
    world.dispatcher.saw(SANDBOXES, {**sandbox_object(), "metadata": metadata("box", resourceVersion="2")})
    assert waiting(world) == {("Sandbox", "box"), ("SandboxPool", "warm")}


def held(version: int = 2) -> dict[str, Any]:
    meta = metadata("box", labels={names.LABEL_POOL: "warm"}, resourceVersion=str(version))
    return {**sandbox_object(claimed=0), "metadata": meta}


def test_claim_wakes_the_pool_and_what_happens_to_the_claimed_sandbox_later_does_not() -> None:
    world = World()
    labels = {names.LABEL_POOL: "warm"}
    world.dispatcher.saw(SANDBOXES, {**sandbox_object(), "metadata": metadata("box", labels=labels)})
    world.queue._waiting.clear()
    world.dispatcher.saw(SANDBOXES, held())
    assert waiting(world) == {("Sandbox", "box"), ("SandboxPool", "warm")}
    world.queue._waiting.clear()
    world.dispatcher.saw(SANDBOXES, held(version=3))
    assert waiting(world) == {("Sandbox", "box")}


def test_pod_wakes_its_sandbox() -> None:
    world = World()
    world.dispatcher.saw(PODS, pod_object())
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
    world.dispatcher.saw(TEMPLATES, template_object())
    assert waiting(world) == {
        ("SandboxTemplate", "python"),
        ("SandboxPool", "warm"),
        ("Sandbox", "without"),
        ("Sandbox", "open"),
    }


def test_event_that_is_no_news_wakes_nobody() -> None:
    world = World()
    world.store.put(SANDBOXES, sandbox_object())
    world.dispatcher.saw(SANDBOXES, sandbox_object())
    assert waiting(world) == set()


def test_object_that_cannot_be_read_is_left_alone_and_said(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.dispatcher.saw(SANDBOXES, {"metadata": metadata("box"), "spec": {}})
    assert waiting(world) == set()
    assert "Sandbox boxes/box can't be read" in caplog.text


async def test_sweep_deletes_a_pod_that_has_long_been_without_its_sandbox() -> None:
    world = World()
    orphan = pod_object()
    orphan["metadata"]["ownerReferences"] = []
    world.store.put(PODS, world.api.set(PODS, orphan))
    await world.orphans.sweep()
    await world.after(world.settings.orphan_grace - 1)
    await world.orphans.sweep()
    assert world.named("Pod") == ["box"]
    await world.after(1)
    await world.orphans.sweep()
    assert world.named("Pod") == []


async def test_sweep_deletes_many_at_once_and_one_that_fails_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(orphan_grace=0)
    count = 100
    for number in range(count):
        orphan = pod_object(f"box-{number}")
        orphan["metadata"]["ownerReferences"] = []
        world.store.put(PODS, world.api.set(PODS, orphan))
    under_way, most, asked = 0, 0, world.api.get

    async def slowly(resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        if resource is SANDBOXES and name == "box-7":
            raise UnreachableError("no answer")
        return await asked(resource, namespace, name)

    monkeypatch.setattr(world.api, "get", slowly)
    with pytest.raises(UnreachableError):
        await world.orphans.sweep()
    assert world.named("Pod") == ["box-7"]
    assert 1 < most < count


async def test_sweep_asks_the_api_server_before_it_takes_a_pod() -> None:
    world = World()
    world.store.put(PODS, world.api.set(PODS, pod_object()))
    world.api.set(SANDBOXES, sandbox_object())
    await world.orphans.sweep()
    await world.after(world.settings.orphan_grace)
    await world.orphans.sweep()
    assert world.named("Pod") == ["box"]
    assert world.store.sandbox(SPACE, "box") is not None


async def test_sweep_of_very_many_asks_for_all_sandboxes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(orphan_grace=0)
    for number in range(101):
        world.store.put(PODS, world.api.set(PODS, pod_object(f"box-{number}")))
    world.api.set(SANDBOXES, sandbox_object("box-7"))

    asked = world.api.get

    async def one_by_one(resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        assert resource is not SANDBOXES
        return await asked(resource, namespace, name)

    monkeypatch.setattr(world.api, "get", one_by_one)
    await world.orphans.sweep()
    assert world.named("Pod") == ["box-7"]


async def test_resync_repairs_what_a_watch_lost_counts_it_and_wakes_everyone() -> None:
    world = World()
    await world.dispatcher.resync()
    world.store.put(SANDBOXES, {**sandbox_object("gone"), "metadata": metadata("gone")})
    world.api.set(SANDBOXES, sandbox_object("missed"))
    world.api.set(POOLS, {"metadata": metadata("warm"), "spec": {"templateRef": {"name": "python"}}})
    world.api.set(PODS, pod_object("missed"))
    await world.dispatcher.resync()
    expected = {("Sandbox", "missed"), ("Sandbox", "gone"), ("SandboxPool", "warm"), ("Namespace", "")}
    assert waiting(world) == expected
    missed = world.metrics.registry.get_sample_value("sandpod_operator_watch_missed_total", {"kind": "Sandbox"})
    assert missed == 2


async def test_first_list_of_each_namespace_counts_nothing_as_missed() -> None:
    world = World(namespaces=("boxes", "more"))
    for namespace in world.settings.namespaces:
        world.api.set(SANDBOXES, {**sandbox_object(), "metadata": metadata("box", namespace=namespace)})
    await world.dispatcher.resync()
    assert world.metrics.registry.get_sample_value("sandpod_operator_watch_missed_total", {"kind": "Sandbox"}) in {
        None,
        0,
    }


async def test_resync_of_claimed_sandboxes_wakes_them_and_leaves_their_former_pool_alone() -> None:
    world = World()
    world.api.set(SANDBOXES, held())
    await world.dispatcher.resync()
    assert waiting(world) == {("Sandbox", "box"), ("Namespace", "")}


async def test_resync_forgets_notes_about_what_is_gone() -> None:
    world = World()
    world.state.backoffs["uid-of-a-pool-that-is-gone"] = PoolBackoff(failures=3)
    await world.dispatcher.resync()
    assert world.state.backoffs == {}


async def test_store_and_server_agree_after_a_resync() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.api.set(SANDBOXES, sandbox_object(name))
    await world.dispatcher.resync()
    other = Store()
    await other.read(SANDBOXES, SPACE, world.api.pages(SANDBOXES, SPACE))
    found = world.store.keys(SANDBOXES, SPACE)
    assert len(found) == 3
    assert [world.store.sandbox(*key[1:]) for key in found] == [other.sandbox(*key[1:]) for key in found]
