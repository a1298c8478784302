"""Whole lives: the operator on an API server in memory, from the first object to the last, every write counted."""

from collections import Counter
from typing import Any

import pytest

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_kube.errors import DeniedError
from sandpod_kube.resources import PODS, POLICIES, POOLS, SANDBOXES, TEMPLATES, Key, Resource
from support.operator.world import SPACE, World, ended, metadata, running, sandbox_object, template_object, waiting

POD = Key("Pod", SPACE, "box")


async def world_with(**template: Any) -> World:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object(**template))
    return world


async def world_with_pool(replicas: int = 2, **pool: Any) -> World:
    world = await world_with()
    spec = {"templateRef": {"name": "python"}, "replicas": replicas, **pool}
    await world.given(POOLS, {"metadata": metadata("warm"), "spec": spec})
    await world.start_all()
    await world.after(1)
    return world


def fresh(name: str = "box") -> dict[str, Any]:
    """A Sandbox that is claimed and made at the world's first moment."""
    made = sandbox_object(name, claimed=0)
    made["metadata"]["creationTimestamp"] = made["spec"]["claim"]["time"]
    return made


async def test_pool_sandbox_costs_six_writes_in_its_whole_life() -> None:
    world = await world_with_pool(replicas=1)
    (name,) = world.named("Sandbox")
    pool_status = ("patch_status", "SandboxPool")
    assert Counter(w for w in world.api.writes if w != pool_status) == {
        ("apply", "NetworkPolicy"): 1,
        ("create", "Sandbox"): 1,
        ("create", "Pod"): 1,
        ("patch_status", "Sandbox"): 1,
    }
    world.api.writes.clear()
    world.api.refuse = refuse_new_sandboxes
    await world.claim(name)
    await world.gone(Key("Sandbox", SPACE, name))
    mine = [w for w in world.api.writes if w not in {pool_status, ("create", "Sandbox")}]
    # With the caller's deletion that makes six.
    assert mine == [("patch", "Sandbox"), ("patch_status", "Sandbox")]
    assert world.named("Pod") == []


def refuse_new_sandboxes(resource: Resource) -> None:
    if resource is SANDBOXES:
        raise DeniedError(403, "Forbidden", "the test wants no more")


async def test_deny_all_is_there_before_the_first_pod() -> None:
    world = World()
    await world.given(TEMPLATES, template_object())
    await world.given(SANDBOXES, fresh())
    assert world.api.writes[:2] == [("apply", "NetworkPolicy"), ("create", "Pod")]


async def test_deny_all_that_was_deleted_or_opened_is_made_again() -> None:
    world = await world_with()
    key = Key("NetworkPolicy", SPACE, names.POLICY_DENY_ALL)
    await world.gone(key)
    assert world.policy(key.name)["spec"]["egress"] == []
    opened = {**world.policy(key.name)["spec"], "egress": [{}]}
    await world.change(key, spec=opened)
    assert world.policy(key.name)["spec"]["egress"] == []


async def test_profile_follows_its_template() -> None:
    world = await world_with(networkProfiles=[{"name": "web", "egress": [{"cidr": "192.0.2.0/24"}]}])
    policy = Key("NetworkPolicy", SPACE, "sandpod-python-web")
    assert policy in world.api.objects
    await world.gone(policy)
    assert policy in world.api.objects
    await world.given(TEMPLATES, {**template_object(), "metadata": world.api.objects[_template()]["metadata"]})
    assert policy not in world.api.objects


def _template() -> Key:
    return Key("SandboxTemplate", SPACE, "python")


async def test_claimed_sandbox_leaves_its_pool_and_is_replaced() -> None:
    world = await world_with_pool(replicas=2)
    first, second = world.named("Sandbox")
    await world.claim(first)
    assert len(world.named("Sandbox")) == 3
    assert (world.sandbox(first).status.phase, world.sandbox(second).status.phase) == ("Ready", "Warm")
    await world.start_all()
    await world.after(1)
    assert (world.pool().status.replicas, world.pool().status.ready_replicas) == (2, 2)


@pytest.mark.promise("status-kept")
async def test_pool_makes_nothing_twice_though_no_event_has_come() -> None:
    world = await world_with()
    spec = {"templateRef": {"name": "python"}, "replicas": 3}
    await world.given(POOLS, {"metadata": metadata("warm"), "spec": spec})
    for _ in range(5):
        world.queue.add(Key("SandboxPool", SPACE, "warm"))
        await world.settle()
    assert len(world.named("Sandbox")) == 3


async def test_scale_down_never_takes_a_sandbox_that_was_claimed_meanwhile() -> None:
    world = await world_with_pool(replicas=1)
    (name,) = world.named("Sandbox")
    key = Key("Sandbox", SPACE, name)
    claimed = world.api.objects[key]
    # The claim is written, and its event has not come yet when the pool is scaled down.
    claim = {"owner": "alice", "session": "", "time": rfc3339(world.now)}
    meta = {**claimed["metadata"], "ownerReferences": [], "generation": 2}
    world.api.set(SANDBOXES, {**claimed, "metadata": meta, "spec": {**claimed["spec"], "claim": claim}})
    pool = Key("SandboxPool", SPACE, "warm")
    await world.change(pool, spec={**world.api.objects[pool]["spec"], "replicas": 0})
    assert world.named("Sandbox") == [name]
    assert world.sandbox(name).status.phase == "Ready"


async def test_expired_sandbox_deletes_pod_and_keeps_object() -> None:
    world = await world_with()
    await world.given(SANDBOXES, fresh())
    await world.pod_becomes("box", running())
    await world.after(1799)
    assert world.sandbox().status.phase == "Ready"
    await world.after(1)
    assert (world.sandbox().status.phase, world.named("Pod")) == ("Expired", [])
    await world.after(world.settings.retention - 1)
    assert world.named("Sandbox") == ["box"]
    await world.after(1)
    assert world.named("Sandbox") == []


async def test_use_keeps_a_sandbox_alive_past_its_first_end() -> None:
    world = await world_with()
    await world.given(SANDBOXES, fresh())
    await world.pod_becomes("box", running())
    await world.after(1700)
    used = {names.ANNOTATION_LAST_ACTIVITY: rfc3339(world.now)}
    key = Key("Sandbox", SPACE, "box")
    await world.change(key, metadata={**world.api.objects[key]["metadata"], "annotations": used})
    await world.after(1799)
    assert world.sandbox().status.phase == "Ready"
    await world.after(1)
    assert world.sandbox().status.reason == "IdleTimeout"


async def test_held_sandbox_that_ran_out_of_memory_is_failed_and_not_made_anew() -> None:
    world = await world_with()
    await world.given(SANDBOXES, fresh())
    await world.pod_becomes("box", running())
    await world.pod_becomes("box", ended(137, reason="OOMKilled"))
    assert world.sandbox().status.reason == "OutOfMemory"
    await world.after(world.settings.failed_pod_grace)
    assert world.named("Pod") == []
    await world.after(world.settings.retention)
    assert world.named("Sandbox") == []


async def test_sandbox_that_fails_long_after_it_began_to_start_says_so_and_is_kept_as_long_as_any_other() -> None:
    world = await world_with()
    await world.given(SANDBOXES, fresh())
    await world.pod_becomes("box", waiting("ImagePullBackOff", "no such image"))
    await world.after(world.settings.retention + 1)
    assert world.sandbox().status.reason == "ImagePullFailed"
    await world.pod_becomes("box", ended(1))
    assert world.sandbox().status.phase == "Failed"
    await world.after(world.settings.failed_pod_grace - 1)
    assert world.named("Pod") == ["box"]
    await world.after(1)
    assert world.named("Pod") == []
    await world.after(world.settings.retention - world.settings.failed_pod_grace - 1)
    assert world.named("Sandbox") == ["box"]
    await world.after(1)
    assert world.named("Sandbox") == []


async def test_held_sandbox_whose_pod_is_deleted_says_node_lost() -> None:
    world = await world_with()
    await world.given(SANDBOXES, fresh())
    await world.pod_becomes("box", running())
    await world.gone(POD)
    assert (world.sandbox().status.phase, world.sandbox().status.reason) == ("Failed", "NodeLost")
    assert world.named("Pod") == []


async def test_warm_sandbox_whose_pod_is_deleted_is_replaced() -> None:
    world = await world_with_pool(replicas=1)
    (name,) = world.named("Sandbox")
    await world.gone(Key("Pod", SPACE, name))
    assert len(world.named("Sandbox")) == 1
    assert name not in world.named("Sandbox")


async def test_quota_is_told_and_the_pod_is_made_once_there_is_room() -> None:
    world = await world_with()
    text = 'pods "box" is forbidden: exceeded quota: limits, requested: pods=1, used: pods=2, limited: pods=2'

    def full(resource: Resource) -> None:
        if resource.kind == "Pod":
            raise DeniedError(403, "Forbidden", text)

    world.api.refuse = full
    await world.given(SANDBOXES, fresh())
    status = world.sandbox().status
    assert (status.phase, status.reason) == ("Pending", "QuotaExceeded")
    assert text in status.conditions[0].message
    await world.after(5)
    assert world.api.writes.count(("create", "Pod")) == 2
    world.api.refuse = None
    await world.after(10)
    assert world.named("Pod") == ["box"]
    assert world.api.writes.count(("create", "Pod")) == 3


async def test_pod_that_leaves_lets_a_sandbox_that_the_quota_refused_try_at_once() -> None:
    world = await world_with()
    await world.given(SANDBOXES, fresh("first"))

    def full(resource: Resource) -> None:
        if resource.kind == "Pod" and world.named("Pod"):
            raise DeniedError(403, "Forbidden", "exceeded quota: pods")

    world.api.refuse = full
    await world.given(SANDBOXES, fresh("second"))
    assert world.named("Pod") == ["first"]
    await world.gone(Key("Sandbox", SPACE, "first"))
    assert world.named("Pod") == ["second"]


async def test_broken_template_makes_fewer_and_fewer_sandboxes_and_a_mended_one_fills_the_pool() -> None:
    world = await world_with()
    spec = {"templateRef": {"name": "python"}, "replicas": 1}
    await world.given(POOLS, {"metadata": metadata("warm"), "spec": spec})
    for _ in range(3600):
        for name in world.named("Pod"):
            if "status" not in world.api.objects[Key("Pod", SPACE, name)]:
                await world.pod_becomes(name, ended(1, message="no such module"))
        await world.after(1)
    assert world.api.writes.count(("create", "Sandbox")) < 20
    assert world.pool().status.reason == "PoolBlocked"
    assert "no such module" in world.pool().status.conditions[0].message
    mended = {**template_object(image="sandpod/sandbox:mended"), "metadata": world.api.objects[_template()]["metadata"]}
    await world.given(TEMPLATES, mended)
    await world.start_all()
    await world.after(1)
    assert (world.pool().status.ready_replicas, world.pool().status.reason) == (1, None)


async def test_sandbox_waits_for_its_template() -> None:
    world = World()
    await world.given(SANDBOXES, fresh())
    assert world.sandbox().status.reason == "TemplateNotFound"
    await world.given(TEMPLATES, template_object())
    assert world.named("Pod") == ["box"]


async def test_pod_that_an_earlier_sandbox_left_is_not_taken_over() -> None:
    world = await world_with()
    await world.given(SANDBOXES, fresh())
    old = world.api.objects[POD]
    earlier = {**old["metadata"], "uid": "uid-of-an-earlier-pod", "ownerReferences": [{"uid": "uid-earlier"}]}
    world.api.objects[POD] = {**old, "metadata": earlier}
    again = {**fresh(), "metadata": {**fresh()["metadata"], "uid": "uid-again"}}
    world.dispatcher.lost(POD)
    await world.given(SANDBOXES, again)
    assert world.sandbox().status.phase is None
    await world.after(5)
    assert "created earlier or for something else" in world.sandbox().status.conditions[0].message
    await world.gone(POD)
    assert world.api.objects[POD]["metadata"]["ownerReferences"][0]["uid"] == "uid-again"


async def test_pod_that_the_store_missed_is_found_and_not_made_twice() -> None:
    world = await world_with()
    await world.given(SANDBOXES, fresh())
    world.api.objects[POD]["metadata"]["uid"] = "uid-of-a-pod-that-was-never-seen"
    world.store.remove(POD)
    world.queue.add(Key("Sandbox", SPACE, "box"))
    await world.settle()
    assert world.store.pod(SPACE, "box") is not None
    assert world.named("Pod") == ["box"]


async def test_sandbox_that_was_deleted_meanwhile_is_forgotten() -> None:
    world = await world_with()
    await world.given(SANDBOXES, fresh())
    pod = world.api.objects[POD]
    world.api.remove(Key("Sandbox", SPACE, "box"))
    # The pod's last event comes before the Sandbox's.
    world.dispatcher.saw(PODS, world.api.set(PODS, {**pod, "status": running()}))
    await world.settle()
    assert world.store.sandbox(SPACE, "box") is None


async def test_story_is_told_in_events() -> None:
    world = await world_with_pool(replicas=1)
    (name,) = world.named("Sandbox")
    await world.claim(name, ttl=60, idleTimeout=60)
    await world.after(60)
    assert [e.reason for e in world.events if e.key.name == name] == ["PodCreated", "Ready", "Claimed", "TTLExpired"]
    await world.given(SANDBOXES, fresh())
    await world.pod_becomes("box", waiting("ErrImagePull", "no such image"))
    assert [(e.reason, e.kind) for e in world.events if e.key.name == "box"] == [
        ("PodCreated", "Normal"),
        ("ImagePullFailed", "Warning"),
    ]


async def test_restarted_operator_does_nothing_when_all_is_well() -> None:
    world = await world_with_pool(replicas=2)
    again = World()
    again.now, again.api.objects = world.now, world.api.objects
    await again.dispatcher.resync()
    await again.settle()
    assert again.api.writes == []
    assert again.events == []


async def test_start_and_end_are_measured() -> None:
    world = await world_with_pool(replicas=1)
    (name,) = world.named("Sandbox")
    await world.claim(name, ttl=60, idleTimeout=60)
    await world.after(60)
    value = world.metrics.registry.get_sample_value
    assert value("sandpod_sandbox_start_seconds_count", {"origin": "pool"}) == 1
    assert value("sandpod_sandboxes_ended_total", {"reason": "TTLExpired"}) == 1
    pool = {"namespace": SPACE, "pool": "warm"}
    assert value("sandpod_pool_wanted", pool) == 1
    assert value("sandpod_operator_reconciles_total", {"kind": "Sandbox", "result": "error"}) == 0
    assert value("sandpod_operator_queue_seconds_count", {"kind": "Sandbox"})
    assert value("sandpod_probe_failures_total", {"probe": "network"}) == 0
    await world.gone(Key("SandboxPool", SPACE, "warm"))
    assert value("sandpod_pool_wanted", pool) is None


@pytest.mark.parametrize("resource", [POLICIES, SANDBOXES])
async def test_refusal_of_anything_but_a_pod_is_tried_again_with_growing_pauses(resource: Resource) -> None:
    world = World()

    def refuse(asked: Resource) -> None:
        if asked is resource:
            raise DeniedError(403, "Forbidden", "no right")

    world.api.refuse = refuse
    await world.given(TEMPLATES, template_object())
    spec = {"templateRef": {"name": "python"}, "replicas": 1}
    await world.given(POOLS, {"metadata": metadata("warm"), "spec": spec})
    assert world.named("Pod") == []
    errors = world.metrics.registry.get_sample_value
    kind = "SandboxPool" if resource is SANDBOXES else "Sandbox"
    first = errors("sandpod_operator_reconciles_total", {"kind": kind, "result": "error"})
    assert first == 1
    for _ in range(60):
        await world.after(1)
    assert errors("sandpod_operator_reconciles_total", {"kind": kind, "result": "error"}) == 6
