"""State in, plan out: what is done about one Sandbox, template or namespace, and when it is looked at again."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

import pytest

from sandpod_api.base import rfc3339
from sandpod_api.conditions import Reason
from sandpod_api.fields import ObjectMeta
from sandpod_api.names import volume_claim_name
from sandpod_api.types import Sandbox, SandboxStatus
from sandpod_kube.resources import PODS, POLICIES, SANDBOXES, VOLUME_CLAIMS
from sandpod_operator.manifests.pod import build_pod, find_profile
from sandpod_operator.model.actions import Action, Apply, Create, Delete, Emit, PatchStatus, Plan
from sandpod_operator.model.observed import ObservedSandbox, Refusal
from sandpod_operator.planning.network_policies import build_deny_all, build_profile, plan_namespace, plan_template
from sandpod_operator.planning.sandbox import plan_sandbox, whole_status
from sandpod_operator.status.sandbox import compute_status
from support.operator.world import NOW, a_pod, a_sandbox, a_template, ago, condition, ended, running, settings, waiting

SETTINGS = settings()
NEW = {"creationTimestamp": rfc3339(NOW)}
FAILED = {"phase": "Failed", "startTime": rfc3339(ago(50)), "podName": "box"}


def observed(**parts: Any) -> ObservedSandbox:
    return ObservedSandbox(**{"sandbox": a_sandbox(claimed=30), "template": a_template(), **parts})


def told(state: ObservedSandbox) -> ObservedSandbox:
    """The same state with its status written."""
    wire = {k: v for k, v in whole_status(compute_status(state, NOW)).items() if v is not None}
    sandbox = state.sandbox.model_copy(update={"status": SandboxStatus.model_validate(wire)})
    return ObservedSandbox(sandbox=sandbox, pod=state.pod, template=state.template, refusal=state.refusal)


def wanting(sandbox: Sandbox, mode: Literal["Running", "Suspended"]) -> Sandbox:
    return sandbox.model_copy(update={"spec": sandbox.spec.model_copy(update={"operating_mode": mode})})


def plan(state: ObservedSandbox, now: datetime = NOW) -> Plan:
    return plan_sandbox(state, SETTINGS, now)


def kinds(actions: Sequence[Action]) -> list[str]:
    """Say the actions in words, Events by their reason."""
    return [f"Emit {a.reason}" if isinstance(a, Emit) else f"{type(a).__name__} {a.resource.kind}" for a in actions]


def test_new_sandbox_gets_its_pod_and_no_status_yet() -> None:
    state = observed(sandbox=a_sandbox(claimed=0, meta=NEW))
    made = plan(state)
    template = a_template()
    profile = find_profile(state.sandbox, template)
    assert profile is not None
    assert made.actions[0] == Create(resource=PODS, manifest=build_pod(state.sandbox, template, profile, SETTINGS))
    assert kinds(made.actions) == ["Create Pod", "Emit PodCreated"]
    assert made.due == NOW + timedelta(seconds=SETTINGS.status_delay)


def test_first_pod_of_a_namespace_waits_for_the_deny_all_policy() -> None:
    made = plan(observed(closed=False, sandbox=a_sandbox(claimed=0, meta=NEW)))
    assert made.actions[0] == Apply(resource=POLICIES, manifest=build_deny_all("boxes"))
    assert kinds(made.actions) == ["Apply NetworkPolicy", "Create Pod", "Emit PodCreated"]


def test_persistent_workspace_has_its_volume_claim_before_its_pod() -> None:
    made = plan(observed(sandbox=a_sandbox(claimed=0, meta=NEW, workspace={"persistent": True})))
    claim = made.actions[0]
    assert isinstance(claim, Create)
    assert (claim.resource, claim.may_exist) == (VOLUME_CLAIMS, True)
    assert kinds(made.actions[1:]) == ["Create Pod", "Emit PodCreated"]


def test_volume_claim_that_held_files_is_never_made_anew() -> None:
    kept: dict[str, Any] = {"workspace": {"persistent": True}, "meta": {"uid": "uid-box"}}
    ready = told(observed(sandbox=a_sandbox(claimed=30, **kept), pod=a_pod(status=running())))
    suspended = told(replace(ready, sandbox=wanting(ready.sandbox, "Suspended"), pod=None))
    assert suspended.sandbox.status.volume_claim == volume_claim_name("box", "uid-box")
    resumed = plan(replace(suspended, sandbox=wanting(suspended.sandbox, "Running")))
    assert kinds(resumed.actions) == ["Create Pod", "Emit PodCreated", "PatchStatus Sandbox", "Emit Resumed"]


def test_start_that_takes_long_is_written_down() -> None:
    state = observed(sandbox=a_sandbox(claimed=0, meta=NEW), pod=a_pod(status=waiting("ContainerCreating")))
    assert plan(state).actions == ()
    late = plan(state, NOW + timedelta(seconds=SETTINGS.status_delay))
    assert kinds(late.actions) == ["PatchStatus Sandbox"]


def test_ready_sandbox_is_told_once_and_then_left_alone_until_its_end() -> None:
    state = observed(pod=a_pod(status=running()))
    assert kinds(plan(state).actions) == ["PatchStatus Sandbox", "Emit Ready"]
    again = plan(told(state))
    assert again.actions == ()
    assert again.due == ago(30) + timedelta(seconds=1800)


def test_claim_is_told_with_one_write() -> None:
    warm = told(ObservedSandbox(sandbox=a_sandbox(), pod=a_pod(status=running()), template=a_template()))
    claimed = a_sandbox(claimed=0, meta={"generation": 2}).model_copy(update={"status": warm.sandbox.status})
    made = plan(ObservedSandbox(sandbox=claimed, pod=warm.pod, template=warm.template))
    assert kinds(made.actions) == ["PatchStatus Sandbox", "Emit Claimed"]
    patch = made.actions[0]
    assert isinstance(patch, PatchStatus)
    assert (patch.status["phase"], patch.status["observedGeneration"]) == ("Ready", 2)
    assert patch.status["expiresAt"] == rfc3339(NOW + timedelta(seconds=1800))


def test_trouble_is_told_as_a_warning_with_its_words() -> None:
    made = plan(observed(pod=a_pod(status=waiting("ErrImagePull", "no such image"))))
    text = "The image can't be pulled: no such image"
    assert made.actions[-1] == Emit(SANDBOXES, a_sandbox().metadata, "ImagePullFailed", text, "Warning")


@pytest.mark.parametrize(
    "state",
    [
        observed(template=None),
        observed(sandbox=a_sandbox(claimed=30, network="nowhere")),
        observed(name_taken=True),
        observed(sandbox=a_sandbox(claimed=30, operatingMode="Suspended")),
    ],
)
def test_no_pod_is_made_without_template_profile_and_free_name_nor_while_suspended(state: ObservedSandbox) -> None:
    assert "Create Pod" not in kinds(plan(state).actions)


def test_refused_pod_is_tried_again_only_when_its_time_has_come() -> None:
    until = NOW + timedelta(seconds=5)
    refusal = Refusal(reason=Reason.QUOTA_EXCEEDED, message="no room", attempts=1, until=until)
    state = told(observed(refusal=refusal))
    waits = plan(state)
    assert (waits.actions, waits.due) == ((), until)
    assert kinds(plan(state, until).actions)[0] == "Create Pod"


def test_expired_sandbox_is_told_so_and_loses_its_pod_but_stays_for_the_retention() -> None:
    state = observed(
        sandbox=a_sandbox(claimed=100, lifetime={"ttl": 90, "idleTimeout": 90}), pod=a_pod(status=running())
    )
    made = plan(state)
    assert kinds(made.actions) == ["PatchStatus Sandbox", "Emit TTLExpired", "Delete Pod"]
    assert made.due == NOW + timedelta(seconds=SETTINGS.retention)
    later = told(ObservedSandbox(sandbox=state.sandbox, template=state.template))
    assert plan(later).actions == ()


def test_expired_sandbox_is_deleted_after_the_retention_if_nobody_changed_it() -> None:
    over = {"conditions": [condition("Expired", "True", "TTLExpired", since=SETTINGS.retention)]}
    sandbox = a_sandbox(claimed=9000, status=over)
    assert plan(observed(sandbox=sandbox)).actions == (Delete(SANDBOXES, sandbox.metadata, unchanged=True),)


def test_failed_sandbox_keeps_its_pod_for_a_while_and_never_gets_another() -> None:
    grace = SETTINGS.failed_pod_grace
    state = told(
        observed(sandbox=a_sandbox(claimed=90, status=FAILED), pod=a_pod(status=ended(137, reason="OOMKilled")))
    )
    waits = plan(state)
    assert (waits.actions, waits.due) == ((), NOW + timedelta(seconds=grace))
    assert kinds(plan(state, NOW + timedelta(seconds=grace)).actions) == ["Delete Pod"]
    alone = ObservedSandbox(sandbox=state.sandbox, template=state.template)
    assert plan(alone).actions == ()
    assert kinds(plan(alone, NOW + timedelta(seconds=SETTINGS.retention)).actions) == ["Delete Sandbox"]


def test_held_sandbox_whose_pod_was_deleted_is_told_and_not_made_anew() -> None:
    made = plan(observed(sandbox=a_sandbox(claimed=90, status={**FAILED, "phase": "Ready"})))
    assert kinds(made.actions) == ["PatchStatus Sandbox", "Emit NodeLost"]


def test_pod_of_a_silent_node_is_left_to_kubernetes() -> None:
    lived = a_sandbox(claimed=90, status={**FAILED, "conditions": [condition("Ready", "False", "NodeLost", since=300)]})
    made = plan(observed(sandbox=lived, pod=a_pod(status=running(ready=False))))
    assert "Delete Pod" not in kinds(made.actions)


def test_suspended_sandbox_loses_its_pod_and_gets_one_when_resumed() -> None:
    state = observed(sandbox=a_sandbox(claimed=30, operatingMode="Suspended"), pod=a_pod(status=running()))
    assert kinds(plan(state).actions) == ["PatchStatus Sandbox", "Emit Suspended", "Delete Pod"]
    suspended = told(ObservedSandbox(sandbox=state.sandbox, template=state.template))
    resumed = a_sandbox(claimed=30).model_copy(update={"status": suspended.sandbox.status})
    assert kinds(plan(ObservedSandbox(sandbox=resumed, template=state.template)).actions)[0] == "Create Pod"


def test_sandbox_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    going = a_sandbox(claimed=30, meta={"deletionTimestamp": rfc3339(NOW)})
    assert plan(observed(sandbox=going)) == Plan()


def test_status_patch_leaves_nothing_of_an_older_status() -> None:
    made = plan(
        observed(
            sandbox=a_sandbox(
                claimed=30, status={"nodeName": "old", "startTime": rfc3339(NOW)}, operatingMode="Suspended"
            )
        )
    )
    patch = made.actions[0]
    assert isinstance(patch, PatchStatus)
    assert patch.status["nodeName"] is None
    assert patch.status["startTime"] is None


WEB = {"name": "web", "egress": [{"cidr": "192.0.2.0/24"}]}


def stored(policy: dict[str, Any]) -> dict[str, Any]:
    spec = {k: v for k, v in policy["spec"].items() if v != []}
    return {"metadata": {**policy["metadata"], "uid": "uid-policy"}, "spec": spec}


def test_template_gets_a_policy_for_each_profile() -> None:
    template = a_template(networkProfiles=[WEB])
    wanted = build_profile(template, template.spec.network_profiles[0])
    assert plan_template(template, []).actions == (Apply(POLICIES, wanted),)
    assert plan_template(template, [stored(wanted)]) == Plan()


def test_profile_that_a_template_dropped_is_closed_again() -> None:
    template = a_template(networkProfiles=[WEB])
    old = stored(build_profile(template, template.spec.network_profiles[0]))
    made = plan_template(a_template(), [old])
    assert made.actions == (Delete(POLICIES, ObjectMeta.model_validate(old["metadata"])),)


def test_namespace_is_closed_unless_it_is() -> None:
    assert plan_namespace("boxes", [stored(build_deny_all("boxes"))], ()) == Plan()
    assert plan_namespace("boxes", [], ()).actions == (Apply(POLICIES, build_deny_all("boxes")),)
