from datetime import UTC, datetime, timedelta

import pytest

from sandpod_api import crd
from sandpod_api.conditions import (
    ADVICE,
    MEANINGS,
    SENTENCES,
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    find,
    is_true,
    merge,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=1)


def ready(status: ConditionStatus, *, since: datetime | None = None, reason: str = "Ready") -> Condition:
    return Condition(type=ConditionType.READY, status=status, reason=reason, last_transition_time=since)


def test_time_is_kept_while_the_status_is_the_same_though_the_reason_changes() -> None:
    old = [ready("False", since=EARLIER, reason="Starting")]
    (merged,) = merge(old, [ready("False", reason="ImagePullFailed")], NOW, 3)
    assert (merged.last_transition_time, merged.reason, merged.observed_generation) == (EARLIER, "ImagePullFailed", 3)


def test_time_is_now_when_the_status_changes_or_is_new() -> None:
    assert merge([ready("False", since=EARLIER)], [ready("True")], NOW, 3)[0].last_transition_time == NOW
    assert merge([], [ready("True")], NOW, 3)[0].last_transition_time == NOW
    assert merge([ready("True")], [ready("True")], NOW, 3)[0].last_transition_time == NOW


def test_condition_that_is_not_computed_any_more_is_gone() -> None:
    gone = Condition(type=ConditionType.KERNEL_ISOLATED, status="Unknown", reason="ProbePending")
    assert [c.type for c in merge([gone], [ready("True")], NOW, 3)] == ["Ready"]


def test_condition_is_found_by_type() -> None:
    conditions = [ready("Unknown")]
    assert find(conditions, ConditionType.READY) is conditions[0]
    assert find(conditions, ConditionType.EXPIRED) is None


@pytest.mark.parametrize(("status", "true"), [("True", True), ("False", False), ("Unknown", False)])
def test_only_true_is_true(*, status: ConditionStatus, true: bool) -> None:
    assert is_true([ready(status)], ConditionType.READY) is true
    assert not is_true([], ConditionType.READY)


def test_every_reason_has_a_sentence() -> None:
    assert [s for s in SENTENCES.values() if not s.endswith(".") or s[0].islower()] == []


# Nothing is wrong, or what is comes right by itself.
FINE = {
    *(Reason.POD_PENDING, Reason.SCHEDULED, Reason.STARTING, Reason.READY, Reason.PROBE_PENDING, Reason.PROBED),
    *(Reason.APPLIED, Reason.APPLYING, Reason.ALIVE, Reason.POOL_FULL, Reason.POOL_FILLING, Reason.PROVISIONED),
    *(Reason.DESIRED_WITHIN_RANGE, Reason.RESIZED),
}


def test_every_reason_that_is_trouble_says_what_to_do() -> None:
    assert set(ADVICE) == set(Reason) - FINE
    assert [s for s in ADVICE.values() if not s.endswith(".") or s[0].islower()] == []


def test_every_condition_has_a_sentence() -> None:
    assert [s for s in MEANINGS.values() if not s.endswith(".") or s[0].islower()] == []


@pytest.mark.parametrize("kind", ["Sandbox", "SandboxPool", "SandboxTenant"])
def test_kubectl_explain_tells_all_of_them(kind: str) -> None:
    [made] = [m for m in crd.render() if m["spec"]["names"]["kind"] == kind]
    status = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    told = status["properties"]["conditions"]["items"]["properties"]
    lines = told["type"]["description"].splitlines() + told["reason"]["description"].splitlines()
    assert {f"{kind}: {meaning}" for kind, meaning in MEANINGS.items()} <= set(lines)
    advised = {f"{reason}: {reason.sentence} {advice}" for reason, advice in ADVICE.items()}
    assert advised | {f"{reason}: {reason.sentence}" for reason in FINE} <= set(lines)
