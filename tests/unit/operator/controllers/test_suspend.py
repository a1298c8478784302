"""Suspend and resume: states in, plans out, and lives on an API server in memory."""

from datetime import timedelta
from typing import Any

import pytest

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_api.conditions import Condition, ConditionType, find
from sandpod_api.types import SandboxStatus
from sandpod_kube.errors import DeniedError
from sandpod_kube.resources import SANDBOXES, TEMPLATES, VOLUME_CLAIMS, Key, Resource
from sandpod_operator.model.actions import Action, Create, Emit, Patch, Plan
from sandpod_operator.model.observed import ObservedSandbox
from sandpod_operator.planning.sandbox import plan_sandbox
from sandpod_operator.status.sandbox import compute_status
from support.operator.world import (
    NOW,
    SPACE,
    World,
    a_pod,
    a_sandbox,
    a_template,
    ago,
    condition,
    ended,
    running,
    sandbox_object,
    settings,
    template_object,
)

KEPT = {"size": "1Gi", "persistent": True}
BOX, POD = Key("Sandbox", SPACE, "box"), Key("Pod", SPACE, "box")
LIVED = {"startTime": rfc3339(ago(5000)), "podName": "box", "phase": "Ready"}
SUSPENDED = {"phase": "Suspended", "conditions": [condition("Suspended", "True", "Suspended", since=900)]}
SHORT = {"ttl": 10_000, "idleTimeout": 100}


def observed(*, template: Any = None, pod: Any = None, claimed: float = 6000, **sandbox: Any) -> ObservedSandbox:
    made = a_sandbox(claimed=claimed, **{"workspace": KEPT, "lifetime": SHORT, **sandbox})
    return ObservedSandbox(sandbox=made, template=a_template(**(template or {})), pod=pod)


def plan(state: ObservedSandbox) -> Plan:
    return plan_sandbox(state, settings(), NOW)


def kinds(made: Plan) -> list[str]:
    return [word(action) for action in made.actions]


def word(action: Action) -> str:
    return f"Emit {action.reason}" if isinstance(action, Emit) else f"{type(action).__name__} {action.resource.kind}"


def of(status: SandboxStatus, kind: ConditionType) -> Condition:
    found = find(status.conditions, kind)
    assert found is not None
    return found


def test_idle_sandbox_with_a_persistent_workspace_is_suspended_and_nothing_else_is_done() -> None:
    made = plan(observed(pod=a_pod(status=running()), status=LIVED))
    assert kinds(made) == ["Patch Sandbox", "Emit IdleTimeout"]
    patch, told = made.actions
    assert isinstance(patch, Patch)
    assert (patch.spec, patch.metadata.resource_version) == ({"operatingMode": "Suspended"}, "1")
    assert isinstance(told, Emit)
    assert "Idle for 100 s" in told.message
    assert rfc3339(ago(-4000)) in told.message


@pytest.mark.parametrize(
    "state",
    [
        observed(pod=a_pod(status=running()), status=LIVED, template={"whenIdle": "End"}),
        observed(pod=a_pod(status=running()), status=LIVED, workspace={"size": "1Gi"}),
        observed(pod=a_pod(status=running()), status=LIVED, claimed=10_000),
        observed(status={**SUSPENDED, "startTime": None}, operatingMode="Suspended", claimed=10_000),
    ],
    ids=["by the template's choice", "nothing would stay", "its ttl is over", "its ttl is over while suspended"],
)
def test_sandbox_ends_where_it_is_not_to_be_suspended(state: ObservedSandbox) -> None:
    assert compute_status(state, NOW).phase == "Expired"
    assert "Patch Sandbox" not in kinds(plan(state))


WORKED = {**LIVED, "volumeClaim": "box-1", "conditions": [condition("Ready", "True", "Ready", since=4000)]}
GONE = [
    (None, "NodeLost"),
    (a_pod(status=ended(137, reason="OOMKilled")), "OutOfMemory"),
    (a_pod(status=ended(1)), "PodFailed"),
    (a_pod(status={"phase": "Failed", "reason": "Evicted", "message": "Usage exceeds 256Mi"}), "Evicted"),
]


@pytest.mark.parametrize(("pod", "reason"), GONE, ids=[reason for _, reason in GONE])
def test_persistent_workspace_outlasts_its_pod_whatever_became_of_that(pod: Any, reason: str) -> None:
    made = plan(observed(pod=pod, status=WORKED, claimed=30))
    assert kinds(made) == ["Patch Sandbox", f"Emit {reason}"]
    patch, told = made.actions
    assert isinstance(patch, Patch)
    assert patch.spec == {"operatingMode": "Suspended"}
    assert isinstance(told, Emit)
    assert (told.kind, ". The files of its persistent workspace are kept" in told.message) == ("Warning", True)


@pytest.mark.parametrize(
    "state",
    [
        observed(status={**WORKED, "volumeClaim": None}, claimed=30),
        observed(status=WORKED, claimed=30, workspace={"size": "1Gi"}),
        observed(status={**WORKED, "conditions": [condition("Ready", "False", "NodeLost", since=9)]}, claimed=30),
        observed(status=WORKED, claimed=10_000),
    ],
    ids=["it never had files", "its files are gone", "it had ended before", "its ttl is over"],
)
def test_sandbox_without_a_pod_ends_where_nothing_is_kept(state: ObservedSandbox) -> None:
    assert compute_status(state, NOW).phase in {"Failed", "Expired"}
    assert "Patch Sandbox" not in kinds(plan(state))


def test_suspended_sandbox_is_never_idle_and_is_looked_at_again_when_its_ttl_ends() -> None:
    state = observed(operatingMode="Suspended", status=SUSPENDED)
    assert compute_status(state, NOW).phase == "Suspended"
    assert compute_status(state, NOW).expires_at == ago(-4000)
    assert plan(state).due == ago(-4000)


def test_running_one_is_looked_at_again_when_it_will_be_idle_though_it_does_not_end_then() -> None:
    state = observed(pod=a_pod(status=running()), status=LIVED, claimed=30)
    assert compute_status(state, NOW).expires_at == ago(30 - 10_000)
    assert plan(state).due == ago(30 - 100)


def test_busy_sandbox_is_never_idle() -> None:
    busy = {"annotations": {names.ANNOTATION_BUSY_UNTIL: rfc3339(ago(-600))}}
    made = plan(observed(pod=a_pod(status=running()), status=LIVED, meta=busy))
    assert "Patch Sandbox" not in kinds(made)
    assert made.due == ago(-700)


@pytest.mark.parametrize("since", [None, 60.0])
def test_idle_clock_starts_anew_at_a_resume_though_nobody_used_the_sandbox(since: float | None) -> None:
    before = "True" if since is None else "False"
    status = {"conditions": [condition("Suspended", before, "Suspended", since=since or 900)]}
    made = plan(observed(status=status))
    assert kinds(made)[:2] == ["Create PersistentVolumeClaim", "Create Pod"]
    assert made.due is None or made.due <= NOW + timedelta(seconds=100 - (since or 0))
    assert "Patch Sandbox" not in kinds(made)
    assert "Patch Sandbox" in kinds(plan(observed(status=told_resumed(101))))


def told_resumed(since: float) -> dict[str, Any]:
    return {"conditions": [condition("Suspended", "False", "Resumed", since=since)]}


def test_suspended_while_it_starts_it_loses_the_pod_and_is_not_failed() -> None:
    for pod in (a_pod(), a_pod(status=ended(143)), a_pod(status=running())):
        state = observed(pod=pod, operatingMode="Suspended", claimed=30)
        status = compute_status(state, NOW)
        assert (status.phase, status.reason) == ("Suspended", "Suspended")
        assert kinds(plan(state))[-1] == "Delete Pod"


@pytest.mark.parametrize("status", [running(), ended(143), ended(0, reason="Completed"), {"phase": "Pending"}])
def test_resumed_while_the_old_pod_still_ends_it_waits_and_takes_nothing_of_it_for_news(status: dict[str, Any]) -> None:
    old = a_pod(status=status, deletionTimestamp=rfc3339(ago(1)))
    state = observed(pod=old, status=SUSPENDED)
    found = compute_status(state, NOW)
    assert (found.phase, found.reason, found.pod_name) == ("Pending", "PodPending", None)
    assert "still exists" in of(found, ConditionType.READY).message
    assert of(found, ConditionType.NETWORK_ISOLATED).status == "Unknown"
    assert not {"Create Pod", "Delete Pod"} & set(kinds(plan(state)))


def test_network_is_probed_anew_after_a_resume() -> None:
    for pod, isolated in ((None, "Unknown"), (a_pod(), "Unknown"), (a_pod(status=running()), "True")):
        found = compute_status(observed(pod=pod, status=told_resumed(5)), NOW)
        assert of(found, ConditionType.NETWORK_ISOLATED).status == isolated


def test_sandbox_that_has_failed_stays_so_whatever_its_mode_is_set_to() -> None:
    failed = {"phase": "Failed", "conditions": [condition("Ready", "False", "OutOfMemory", message="it was too much")]}
    for pod in (None, a_pod(status=ended(137, reason="OOMKilled"))):
        found = compute_status(observed(operatingMode="Suspended", status=failed, pod=pod), NOW)
        assert (found.phase, found.reason) == ("Failed", "OutOfMemory")


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Unschedulable", "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."),
        ("SchedulerError", 'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded'),
    ],
)
def test_volume_that_can_not_be_had_is_told_in_the_schedulers_words(reason: str, message: str) -> None:
    stuck = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    found = compute_status(observed(pod=a_pod(status={"phase": "Pending", "conditions": [stuck]}), claimed=5), NOW)
    assert found.reason == "Unschedulable"
    assert message[:60] in of(found, ConditionType.READY).message


def test_volume_that_waits_for_its_first_pod_is_named_as_what_the_pod_waits_for() -> None:
    found = compute_status(observed(pod=a_pod(), claimed=5), NOW)
    assert of(found, ConditionType.POD_SCHEDULED).message == "The pod is waiting for a node and its volume."


def test_claim_names_its_storage_class_and_an_earlier_sandboxs_claim_is_never_taken_over() -> None:
    made = [
        plan(observed(claimed=5, workspace={**KEPT, "storageClassName": "fast"}, meta={"uid": uid})).actions[0]
        for uid in ("11111111-2222", "33333333-4444")
    ]
    claims = [action.manifest for action in made if isinstance(action, Create) and action.resource is VOLUME_CLAIMS]
    assert [claim["spec"]["storageClassName"] for claim in claims] == ["fast", "fast"]
    assert [claim["metadata"]["name"] for claim in claims] == ["box-workspace-11111111", "box-workspace-33333333"]
    assert [claim["metadata"]["ownerReferences"][0]["uid"] for claim in claims] == ["11111111-2222", "33333333-4444"]


async def kept_world(**lifetime: int) -> World:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object(workspace=KEPT))
    made = sandbox_object(claimed=0, lifetime={**SHORT, **lifetime})
    made["metadata"]["creationTimestamp"] = rfc3339(NOW)
    await world.given(SANDBOXES, made)
    await world.start_all()
    return world


async def resume(world: World) -> None:
    """Do as the gateway's one write does."""
    old = world.api.objects[BOX]
    await world.change(BOX, spec={**old["spec"], "operatingMode": "Running"})


def mode(world: World) -> tuple[str | None, str, list[str]]:
    box = world.sandbox()
    return box.status.phase, box.spec.operating_mode, world.named("Pod")


async def test_life_of_an_idle_sandbox_that_is_used_again() -> None:
    world = await kept_world()
    [claim] = world.named("PersistentVolumeClaim")
    await world.after(99)
    assert mode(world) == ("Ready", "Running", ["box"])
    await world.after(1)
    assert mode(world) == ("Suspended", "Suspended", [])
    await world.after(3000)
    assert mode(world) == ("Suspended", "Suspended", [])
    await resume(world)
    assert mode(world) == ("Pending", "Running", ["box"])
    await world.start_all()
    assert mode(world) == ("Ready", "Running", ["box"])
    await world.after(99)
    assert mode(world) == ("Ready", "Running", ["box"])
    await world.after(1)
    assert mode(world) == ("Suspended", "Suspended", [])
    assert world.named("PersistentVolumeClaim") == [claim]
    told = [emit.reason for emit in world.events]
    once = ["PodCreated", "Ready", "IdleTimeout", "Suspended"]
    assert told == [*once, "PodCreated", "Resumed", *once[1:]]
    assert [emit.message.rpartition(", ")[2] for emit in world.events if emit.reason == "Ready"] == [
        "0 s after it was created.",
        "0 s after it was resumed.",
    ]
    sample = world.metrics.registry.get_sample_value
    assert sample("sandpod_sandbox_start_seconds_count", {"origin": "resume"}) == 1
    await world.after(10_000)
    assert mode(world)[0] == "Expired"
    await world.after(world.settings.retention)
    assert world.named("Sandbox") + world.named("PersistentVolumeClaim") + world.named("Pod") == []


async def test_deleted_while_suspended_it_leaves_nothing() -> None:
    world = await kept_world()
    await world.after(100)
    assert world.named("PersistentVolumeClaim")
    await world.gone(BOX)
    assert world.named("PersistentVolumeClaim") + world.named("Pod") == []


async def test_operator_that_was_down_meanwhile_suspends_late_and_counts_a_resume_from_when_it_sees_it() -> None:
    world = await kept_world()
    world.now += timedelta(seconds=5000)  # nobody looked
    await world.dispatcher.resync()
    await world.settle()
    assert mode(world) == ("Suspended", "Suspended", [])
    old = world.api.objects[BOX]
    world.api.set(SANDBOXES, {**old, "spec": {**old["spec"], "operatingMode": "Running"}})
    world.now += timedelta(seconds=1000)  # nobody saw that either
    await world.dispatcher.resync()
    await world.settle()
    assert mode(world) == ("Pending", "Running", ["box"])


async def test_use_that_the_operator_has_not_seen_keeps_the_sandbox_running() -> None:
    world = await kept_world()
    old = world.api.objects[BOX]
    used = {names.ANNOTATION_LAST_ACTIVITY: rfc3339(NOW + timedelta(seconds=90))}
    world.api.set(SANDBOXES, {**old, "metadata": {**old["metadata"], "annotations": used}})
    await world.after(100)
    assert mode(world) == ("Ready", "Running", ["box"])


async def test_claim_that_the_quota_refuses_is_told_and_no_pod_is_made() -> None:
    def refuse(resource: Resource) -> None:
        if resource is VOLUME_CLAIMS:
            raise DeniedError(403, "Forbidden", "exceeded quota: sandboxes, limited: persistentvolumeclaims=50")

    world = World()
    world.api.refuse = refuse
    await world.given(TEMPLATES, template_object(workspace=KEPT))
    await world.given(SANDBOXES, sandbox_object(claimed=0))
    assert world.sandbox().status.reason == "QuotaExceeded"
    assert world.named("Pod") == []
