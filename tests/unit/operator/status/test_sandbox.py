"""Each state of the world gives the conditions that say it, and they stay what they are."""

from dataclasses import replace

import pytest

from sandpod_api.conditions import Condition, ConditionType, Reason, find
from sandpod_api.types import SandboxStatus
from sandpod_operator.model.observed import ObservedSandbox
from sandpod_operator.planning.sandbox import whole_status
from sandpod_operator.status.failures import FINAL
from sandpod_operator.status.sandbox import compute_status
from support.operator.cases import CASES, LIVED, observed
from support.operator.world import NOW, a_pod, a_sandbox, ago, condition, running, waiting


def words(conditions: list[Condition]) -> set[str]:
    return {f"{c.type}={c.status}/{c.reason}" for c in conditions}


@pytest.mark.parametrize("name", CASES)
def test_state_gives_its_conditions_and_phase(name: str) -> None:
    case = CASES[name]
    status = compute_status(case.state, NOW)
    assert set(case.conditions.split()) <= words(status.conditions)
    assert status.phase == case.phase
    ready = find(status.conditions, ConditionType.READY)
    assert ready is not None
    assert case.message in ready.message
    assert status.reason == (None if ready.status == "True" else ready.reason)


@pytest.mark.parametrize("name", CASES)
def test_status_is_the_same_when_it_is_computed_again(name: str) -> None:
    state = CASES[name].state
    first = compute_status(state, NOW)
    stored = SandboxStatus.model_validate({k: v for k, v in whole_status(first).items() if v is not None})
    again = replace(state, sandbox=state.sandbox.model_copy(update={"status": stored}))
    assert compute_status(again, NOW) == first == stored


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.phase in {"Failed", "Expired"}])
def test_status_of_a_sandbox_that_is_over_does_not_change_when_its_pod_goes(name: str) -> None:
    state = CASES[name].state
    first = compute_status(state, NOW)
    alone = ObservedSandbox(sandbox=state.sandbox.model_copy(update={"status": first}), template=state.template)
    assert compute_status(alone, NOW) == first


def test_conditions_carry_the_generation_and_the_time_of_their_last_change() -> None:
    old = {
        "conditions": [
            condition("Ready", "False", "Starting", since=20),
            condition("Expired", "False", "Alive", since=40),
        ]
    }
    state = observed(sandbox=a_sandbox(claimed=30, status=old, meta={"generation": 3}), pod=a_pod(status=running()))
    status = compute_status(state, NOW)
    ready, expired = (find(status.conditions, k) for k in (ConditionType.READY, ConditionType.EXPIRED))
    assert ready is not None
    assert expired is not None
    assert (ready.last_transition_time, expired.last_transition_time) == (NOW, ago(40))
    assert {c.observed_generation for c in status.conditions} == {3} == {status.observed_generation}


@pytest.mark.parametrize("reason", sorted(FINAL))
def test_sandbox_that_has_ended_stays_ended_with_its_reason_when_its_pod_is_gone(reason: Reason) -> None:
    old = {**LIVED, "phase": "Failed", "conditions": [condition("Ready", "False", reason, since=9, message="As told.")]}
    status = compute_status(observed(sandbox=a_sandbox(claimed=30, status=old)), NOW)
    ready = find(status.conditions, ConditionType.READY)
    assert ready is not None
    assert (status.phase, ready.reason, ready.message, ready.last_transition_time) == (
        "Failed",
        reason,
        "As told.",
        ago(9),
    )
    assert (status.pod_name, status.node_name, status.image) == ("box", "node-1", "sandpod/sandbox:test")


def test_open_network_is_still_said_when_the_pod_is_gone() -> None:
    old = {
        "conditions": [
            condition("NetworkIsolated", "False", "NetworkOpen", message="reached it"),
            condition("Ready", "False", "NetworkOpen", message="reached it"),
        ]
    }
    status = compute_status(observed(sandbox=a_sandbox(claimed=30, status=old)), NOW)
    isolated = find(status.conditions, ConditionType.NETWORK_ISOLATED)
    assert isolated is not None
    assert (isolated.status, isolated.reason) == ("False", "NetworkOpen")


def test_failed_sandbox_that_also_expires_is_still_called_failed() -> None:
    old = {**LIVED, "conditions": [condition("Ready", "False", "OutOfMemory", since=9)]}
    sandbox = a_sandbox(claimed=30, lifetime={"ttl": 20, "idleTimeout": 20}, status=old)
    status = compute_status(observed(sandbox=sandbox), NOW)
    assert status.phase == "Failed"
    assert "Expired=True/TTLExpired" in words(status.conditions)


def test_first_words_about_an_image_stay_while_the_kubelet_tries_again() -> None:
    old = {"conditions": [condition("Ready", "False", "ImagePullFailed", message="registry says: no")]}
    state = observed(
        sandbox=a_sandbox(claimed=30, status=old), pod=a_pod(status=waiting("ImagePullBackOff", "Back-off"))
    )
    ready = find(compute_status(state, NOW).conditions, ConditionType.READY)
    assert ready is not None
    assert ready.message == "registry says: no"


def test_start_time_is_when_the_pod_became_ready_and_is_kept() -> None:
    first = compute_status(observed(pod=a_pod(status=running())), NOW)
    assert first.start_time == NOW
    later = observed(sandbox=a_sandbox(claimed=30, status=LIVED), pod=a_pod(status=running()))
    assert compute_status(later, NOW).start_time == ago(30)


def test_suspended_sandbox_may_have_a_new_pod_later() -> None:
    sandbox = a_sandbox(claimed=30, operatingMode="Suspended", status=LIVED)
    status = compute_status(observed(sandbox=sandbox), NOW)
    assert (status.start_time, status.pod_name) == (None, None)
