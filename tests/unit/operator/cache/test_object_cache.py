import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpod_api import names
from sandpod_api.types import Sandbox
from sandpod_kube.object_cache import GONE, Listing, ObjectCache
from sandpod_kube.resources import PODS, SANDBOXES, Key
from sandpod_operator.cache.object_cache import Kept, Store
from sandpod_operator.model.pod import Pod
from support.operator.world import a_sandbox, condition, metadata, pod_object, running, sandbox_object

BOX = Key("Sandbox", "boxes", "box")


def versioned(version: int, **changes: str) -> dict[str, Any]:
    return {**sandbox_object(), "metadata": metadata("box", resourceVersion=str(version), **changes)}


@given(st.lists(st.integers(1, 50), min_size=1))
def test_newest_version_wins_whatever_the_order(versions: list[int]) -> None:
    store = Store()
    for version in versions:
        store.put(SANDBOXES, versioned(version))
    found = store.sandbox("boxes", "box")
    assert found is not None
    assert found.metadata.resource_version == str(max(versions))


def test_known_version_is_no_news() -> None:
    store = Store()
    assert store.put(SANDBOXES, versioned(7))
    assert not store.put(SANDBOXES, versioned(7))
    assert not store.put(SANDBOXES, versioned(6))
    assert store.put(SANDBOXES, versioned(8))


def test_object_that_was_made_anew_replaces_its_predecessor_whose_late_deletion_is_ignored() -> None:
    store = Store()
    store.put(SANDBOXES, versioned(9, uid="first"))
    assert store.put(SANDBOXES, versioned(3, uid="second", creationTimestamp="2026-03-01T13:00:00Z"))
    assert not store.put(SANDBOXES, versioned(10, uid="first"))
    store.remove(BOX, "first")
    found = store.sandbox("boxes", "box")
    assert found is not None
    assert found.metadata.uid == "second"
    store.remove(BOX, "second")
    assert store.sandbox("boxes", "box") is None


def test_members_follow_the_label_of_the_pool() -> None:
    store = Store()
    labels = {names.LABEL_POOL: "warm"}
    store.put(SANDBOXES, {**sandbox_object(), "metadata": metadata("box", labels=labels)})
    assert [m.metadata.name for m in store.members("boxes", "warm")] == ["box"]
    assert store.members("elsewhere", "warm") == []
    claimed = sandbox_object(claimed=0)
    store.put(SANDBOXES, {**claimed, "metadata": metadata("box", labels=labels, resourceVersion="2")})
    assert store.members("boxes", "warm") == []
    assert store.pool_of(BOX) == ""


async def read(store: Store, *manifests: dict[str, Any] | Callable[[], object]) -> Listing[Kept]:
    """Have a full list read; what is callable happens while it is."""

    async def objects() -> AsyncIterator[dict[str, Any]]:
        for each in manifests:
            if callable(each):
                each()
            else:
                yield each

    return await store.read(SANDBOXES, "boxes", objects())


async def test_full_list_repairs_what_was_missed_and_drops_what_is_gone() -> None:
    store = Store()
    store.put(SANDBOXES, {**sandbox_object("gone"), "metadata": metadata("gone")})
    store.put(SANDBOXES, versioned(5))
    store.put(SANDBOXES, {**sandbox_object("elsewhere"), "metadata": metadata("elsewhere", namespace="other")})
    store.put(PODS, pod_object("gone"))
    broken = {"metadata": metadata("broken"), "spec": {"templateRef": {"name": "Not A Name"}}}
    listing = await read(store, versioned(6), broken)
    assert listing.changed == {BOX, Key("Sandbox", "boxes", "gone")}
    assert listing.bad == 1
    assert sorted(k.name for k in store.keys(SANDBOXES)) == ["box", "elsewhere"]
    assert store.pod("boxes", "gone") is not None


async def test_list_that_is_older_than_an_object_leaves_it_as_it_is() -> None:
    store = Store()
    store.put(SANDBOXES, versioned(8))
    listing = await read(store, versioned(4))
    assert (listing.changed, listing.bad) == (set(), 0)


async def test_what_comes_and_goes_while_a_list_is_read_is_newer_than_the_list() -> None:
    store = Store()
    store.put(SANDBOXES, versioned(5))
    new = {**sandbox_object("new"), "metadata": metadata("new")}
    listing = await read(store, lambda: store.put(SANDBOXES, new), lambda: store.remove(BOX, "uid-box"), versioned(5))
    assert store.keys(SANDBOXES) == [Key("Sandbox", "boxes", "new")]
    assert listing.changed == set()


async def test_list_that_breaks_off_takes_nothing_away() -> None:
    def breaks() -> None:
        raise ValueError("broken off")

    store = Store()
    store.put(SANDBOXES, versioned(5))
    with pytest.raises(ValueError, match="broken off"):
        await read(store, breaks)
    assert store.keys(SANDBOXES) == [BOX]
    await read(store)
    assert store.keys(SANDBOXES) == []


async def test_late_answer_does_not_bring_back_what_is_gone() -> None:
    store = Store()
    store.put(SANDBOXES, versioned(5))
    store.remove(BOX, "uid-box")
    assert not store.put(SANDBOXES, versioned(6))
    assert store.keys(SANDBOXES) == []
    store.remove(Key("Sandbox", "boxes", "unknown"), "uid-of-one-that-was-never-seen")
    late = {**sandbox_object("unknown"), "metadata": metadata("unknown", uid="uid-of-one-that-was-never-seen")}
    assert not store.put(SANDBOXES, late)


async def test_later_list_brings_back_what_was_wrongly_said_to_be_gone() -> None:
    store = Store()
    store.put(SANDBOXES, versioned(5))
    store.remove(BOX)
    listing = await read(store, versioned(5))
    assert listing.changed == {BOX}
    assert store.put(SANDBOXES, versioned(6))


@pytest.mark.parametrize(("first", "then"), [("x10", "x9"), ("10", "x9"), ("x10", "9")])
def test_version_that_is_no_number_is_only_another_one(first: str, then: str) -> None:
    store = Store()
    store.put(SANDBOXES, {**sandbox_object(), "metadata": metadata("box", resourceVersion=first)})
    assert store.put(SANDBOXES, {**sandbox_object(), "metadata": metadata("box", resourceVersion=then)})
    assert not store.put(SANDBOXES, {**sandbox_object(), "metadata": metadata("box", resourceVersion=then)})


def test_no_more_ends_are_remembered_than_a_few_thousand() -> None:
    cache = ObjectCache[str](lambda _key, _old, _new: None)
    for number in range(GONE + 5):
        cache.remove(BOX, f"uid-{number}")
    assert cache.put(BOX, metadata("box", uid="uid-4"), lambda: "forgotten")
    assert not cache.put(BOX, metadata("box", uid="uid-5"), lambda: "remembered")


def test_template_is_looked_up_without_parsing_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    for number in range(3):
        name = f"box-{number}"
        store.put(SANDBOXES, {**sandbox_object(name, claimed=0), "metadata": metadata(name)})
    monkeypatch.setattr(Sandbox, "model_validate_json", None)
    assert [key.name for key in store.users("boxes", "python")] == ["box-0", "box-1", "box-2"]


def test_claimed_sandbox_and_its_pod_are_what_they_were_and_take_little_memory() -> None:
    """Ten thousand of them are held at once."""
    box = a_sandbox(claimed=0, status={"phase": "Ready", "conditions": [condition("Ready", "True", "Ready")]})
    pod = pod_object(status=running())
    store = Store()
    tracemalloc.start()
    try:
        store.put(SANDBOXES, box.to_wire())
        store.put(PODS, pod)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert store.sandbox("boxes", "box") == box
    assert store.pod("boxes", "box") == Pod.model_validate(pod)
    assert taken < 10_000


def test_object_that_is_not_of_its_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="templateRef"):
        Store().put(SANDBOXES, {"metadata": metadata("box"), "spec": {}})
