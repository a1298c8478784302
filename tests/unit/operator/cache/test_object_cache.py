import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpod_api import names
from sandpod_kube.resources import PODS, SANDBOXES, Key
from sandpod_operator.cache.object_cache import Listing, Store
from support.operator.world import a_pod, a_sandbox, condition, metadata, pod_object, running, sandbox_object

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
    assert store.pool_of("boxes", "box") == ""


def listed(store: Store, *manifests: dict[str, Any]) -> Listing:
    with store.listing(SANDBOXES, "boxes") as listing:
        for manifest in manifests:
            listing.put(manifest)
    return listing


def test_full_list_repairs_what_was_missed_and_drops_what_is_gone() -> None:
    store = Store()
    store.put(SANDBOXES, {**sandbox_object("gone"), "metadata": metadata("gone")})
    store.put(SANDBOXES, versioned(5))
    store.put(SANDBOXES, {**sandbox_object("elsewhere"), "metadata": metadata("elsewhere", namespace="other")})
    store.put(PODS, pod_object("gone"))
    broken = {"metadata": metadata("broken"), "spec": {"templateRef": {"name": "Not A Name"}}}
    listing = listed(store, versioned(6), broken)
    assert listing.changed == {BOX, Key("Sandbox", "boxes", "gone")}
    assert listing.bad == 1
    assert sorted(k.name for k in store.keys(SANDBOXES)) == ["box", "elsewhere"]
    assert store.pod("boxes", "gone") is not None


def test_list_that_is_older_than_an_object_leaves_it_as_it_is() -> None:
    store = Store()
    store.put(SANDBOXES, versioned(8))
    listing = listed(store, versioned(4))
    assert (listing.changed, listing.bad) == (set(), 0)


def test_what_comes_and_goes_while_a_list_is_read_is_newer_than_the_list() -> None:
    store = Store()
    store.put(SANDBOXES, versioned(5))
    with store.listing(SANDBOXES, "boxes") as listing:
        store.put(SANDBOXES, {**sandbox_object("new"), "metadata": metadata("new")})
        store.remove(BOX, "uid-box")
        listing.put(versioned(5))
    assert store.keys(SANDBOXES) == [Key("Sandbox", "boxes", "new")]
    assert listing.changed == set()


def test_list_that_breaks_off_takes_nothing_away() -> None:
    store = Store()
    store.put(SANDBOXES, versioned(5))
    with pytest.raises(ValueError, match="broken off"), store.listing(SANDBOXES, "boxes"):
        raise ValueError("broken off")
    assert store.keys(SANDBOXES) == [BOX]
    listed(store)
    assert store.keys(SANDBOXES) == []


def test_claimed_sandbox_and_its_pod_are_what_they_were_and_take_little_memory() -> None:
    """Ten thousand of them are held at once."""
    box = a_sandbox(claimed=0, status={"phase": "Ready", "conditions": [condition("Ready", "True", "Ready")]})
    pod = a_pod(status=running())
    store = Store()
    tracemalloc.start()
    try:
        store.put(SANDBOXES, box.to_wire())
        store.put(PODS, pod.to_wire())
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert store.sandbox("boxes", "box") == box
    assert store.pod("boxes", "box") == pod
    assert taken < 10_000


def test_object_that_is_not_of_its_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="templateRef"):
        Store().put(SANDBOXES, {"metadata": metadata("box"), "spec": {}})
