import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest

from sandpod_api import names
from sandpod_api.types import Claim, Lifetime, Sandbox
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.backends.kubernetes.cache import records
from sandpod_gateway.backends.kubernetes.claims import patches as claims
from sandpod_gateway.backends.kubernetes.claims import readiness
from sandpod_gateway.backends.kubernetes.claims.patches import Wanted
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError
from support.gateway.kube_objects import body, held_by, not_ready, sandbox

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
CLAIM = Claim(owner="alice", session="one", time=NOW.replace(microsecond=0))


def wanted(**fields: Any) -> Wanted:
    return claims.check_request(ClaimRequest(owner="alice", session="one", **fields), KubernetesSettings(), NOW)


def record_of(held: Sandbox) -> SandboxRecord:
    record = records.to_record(held)
    assert record is not None
    return record


def test_a_patch_tests_the_version_and_writes_the_claim() -> None:
    assert claims.claim_patch(sandbox("w", version="77"), wanted(), "f00d") == [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "77"},
        {
            "op": "add",
            "path": "/spec/claim",
            "value": {"owner": "alice", "session": "one", "time": "2026-01-02T03:04:05Z"},
        },
        {
            "op": "add",
            "path": "/metadata/labels",
            "value": {
                "app.kubernetes.io/managed-by": "sandpod",
                "sandpod.dev/state": "claimed",
                "sandpod.dev/owner": names.label_value("alice"),
                "sandpod.dev/session": names.label_value("one"),
            },
        },
        {
            "op": "add",
            "path": "/metadata/annotations",
            "value": {"sandpod.dev/last-activity": "2026-01-02T03:04:05Z", "sandpod.dev/claim-id": "f00d"},
        },
    ]


def test_a_patch_takes_the_sandbox_out_of_its_pool_and_keeps_its_annotations() -> None:
    pooled = body("w")
    pooled["metadata"] |= {"ownerReferences": [{"kind": "SandboxPool"}], "annotations": {"a": "b"}}
    patch = claims.claim_patch(Sandbox.model_validate(pooled), wanted(ttl=60, idle_timeout=10), "f00d")
    written = {"sandpod.dev/last-activity": "2026-01-02T03:04:05Z", "sandpod.dev/claim-id": "f00d"}
    assert patch[3:] == [
        {"op": "add", "path": "/metadata/annotations", "value": {"a": "b", **written}},
        {"op": "remove", "path": "/metadata/ownerReferences"},
        {"op": "add", "path": "/spec/lifetime", "value": {"ttl": 60, "idleTimeout": 10}},
    ]


def test_a_new_sandbox_is_whole_and_carries_its_claim() -> None:
    assert claims.new_sandbox("sbx-1", wanted(template="big", network="web", ttl=60), "f00d") == {
        "apiVersion": "sandpod.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {
            "name": "sbx-1",
            "labels": {
                "app.kubernetes.io/managed-by": "sandpod",
                "sandpod.dev/template": "big",
                "sandpod.dev/state": "claimed",
                "sandpod.dev/owner": names.label_value("alice"),
                "sandpod.dev/session": names.label_value("one"),
            },
            "annotations": {"sandpod.dev/last-activity": "2026-01-02T03:04:05Z", "sandpod.dev/claim-id": "f00d"},
        },
        "spec": {
            "templateRef": {"name": "big"},
            "claim": {"owner": "alice", "session": "one", "time": "2026-01-02T03:04:05Z"},
            "lifetime": {"ttl": 60, "idleTimeout": 60},
            "network": "web",
            "operatingMode": "Running",
        },
    }


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({}, None),
        ({"ttl": 60}, Lifetime(ttl=60, idle_timeout=60)),
        ({"ttl": 9000}, Lifetime(ttl=9000, idle_timeout=1800)),
        ({"idle_timeout": 60}, Lifetime(ttl=14400, idle_timeout=60)),
        ({"idle_timeout": 20000}, Lifetime(ttl=20000, idle_timeout=20000)),
        ({"ttl": 60, "idle_timeout": 90}, Lifetime(ttl=60, idle_timeout=60)),
    ],
)
def test_a_lifetime_is_made_whole(asked: dict[str, int], given: Lifetime | None) -> None:
    assert wanted(**asked).lifetime == given


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": 10**9}, "ttl"),
        ({"idle_timeout": -1}, "idle_timeout"),
        ({"template": ""}, "template"),
        ({"template": "../x"}, "template"),
        ({"template": "A" * 100}, "template"),
        ({"network": "a,b=c"}, "network"),
        ({"network": ""}, "network"),
    ],
)
def test_a_request_that_no_object_could_hold_is_refused(asked: dict[str, Any], word: str) -> None:
    with pytest.raises(SandpodError, match=word) as refused:
        wanted(**asked)
    assert refused.value.code == ErrorCode.INVALID_ARGUMENT


def test_candidates_have_the_network_and_those_with_a_stream_come_first() -> None:
    warm = [sandbox("a"), sandbox("b"), sandbox("c")]
    assert {id(claims.choose_candidate(warm, "none", {"c", "x"})) for _ in range(30)} == {id(warm[2])}
    assert {id(claims.choose_candidate(warm, "none", set())) for _ in range(200)} == set(map(id, warm))
    assert claims.choose_candidate(warm, "web", {"c"}) is None
    assert claims.choose_candidate([], "none", set()) is None


def test_the_older_claim_of_a_session_wins_and_a_second_is_decided_by_uid() -> None:
    older = sandbox("z", claim=held_by("alice", "one", "2026-01-01T00:00:00Z"))
    later = sandbox("a", claim=held_by("alice", "one", "2026-01-01T00:00:01Z"))
    twin = sandbox("b", claim=held_by("alice", "one", "2026-01-01T00:00:01Z"))
    assert claims.first_claimed([twin, later, older]) is older
    assert claims.first_claimed([twin, later]) is later


def test_a_selector_is_made_of_hashes_only() -> None:
    strange = Claim(owner="a=b,c!", session="' or ''", time=NOW)
    assert set(claims.session_selector(strange)) <= set("abcdefghijklmnopqrstuvwxyz0123456789./=,")
    assert claims.session_selector(strange) != claims.session_selector(CLAIM)


@pytest.mark.parametrize(("owned", "total", "over"), [(1, 9, False), (2, 2, True), (0, 10, True)])
def test_limits_are_the_owners_and_everyones(owned: int, total: int, over: bool) -> None:  # noqa: FBT001
    settings = KubernetesSettings(max_sandboxes_per_owner=2, max_sandboxes=10)
    with pytest.raises(SandpodError) if over else contextlib.nullcontext() as refused:
        claims.check_limits(owned, total, settings)
    assert refused is None or refused.value.code == ErrorCode.MAX_SESSIONS


@pytest.mark.parametrize(
    ("reason", "code", "patience"),
    [
        ("ImagePullFailed", ErrorCode.IMAGE_PULL_FAILED, 0),
        ("Unschedulable", ErrorCode.UNSCHEDULABLE, 10),
        ("QuotaExceeded", ErrorCode.QUOTA_EXCEEDED, 10),
        ("WorkspaceLost", ErrorCode.SANDBOX_LOST, 0),
        ("TemplateNotFound", ErrorCode.INVALID_ARGUMENT, 0),
        ("ProfileNotFound", ErrorCode.INVALID_ARGUMENT, 0),
        ("ProfileRefused", ErrorCode.INVALID_ARGUMENT, 0),
        ("AdmissionRefused", ErrorCode.BACKEND_ERROR, 0),
        ("StartFailed", ErrorCode.BACKEND_ERROR, 0),
        ("NetworkOpen", ErrorCode.BACKEND_ERROR, 0),
    ],
)
def test_what_keeps_a_sandbox_from_starting_has_a_code_and_the_operators_words(
    reason: str, code: ErrorCode, patience: float
) -> None:
    failing = sandbox("s", claim=held_by("alice"), conditions=[not_ready(reason, "the operator's words")])
    failure = readiness.start_failure(failing)
    assert failure is not None
    error, lasting = failure
    assert (error.code, error.cause, lasting) == (code, "the operator's words", patience)
    assert error.next_step


@pytest.mark.parametrize("reason", ["PodPending", "Starting", "ProbePending", "SomethingNew"])
def test_what_may_pass_is_no_failure(reason: str) -> None:
    starting = sandbox("s", claim=held_by("alice"), conditions=[not_ready(reason)])
    assert readiness.start_failure(starting) is None
    assert readiness.start_failure(sandbox("s", claim=held_by("alice"), conditions=[])) is None


def test_a_timeout_says_what_was_waited_for() -> None:
    waiting = sandbox("s", claim=held_by("alice"), conditions=[not_ready("Starting", "container is creating")])
    error = readiness.start_timeout(waiting, 120)
    assert (error.code, error.cause) == (ErrorCode.BACKEND_ERROR, "container is creating")
    silent = readiness.start_timeout(sandbox("s", claim=held_by("alice"), conditions=[]), 120)
    assert silent.cause is not None
    assert "operator" in silent.cause


@pytest.mark.parametrize(
    ("status", "phase"),
    [("Ready", None), ("Pending", "Pending"), ("Failed", "Failed"), ("Suspended", "Suspended"), ("Expired", "Expired")],
)
def test_a_record_has_the_status_and_why_it_is_not_ready(status: str, phase: str | None) -> None:
    raw = body("s", claim=held_by("alice", "one"))
    if phase:
        raw["status"] = {"phase": phase, "conditions": [not_ready("PodFailed", "exit code 1")]}
    raw["spec"]["operatingMode"] = "Suspended" if phase == "Suspended" else "Running"
    held = Sandbox.model_validate(raw)
    record = record_of(held)
    assert (record.name, record.owner, record.session, record.status) == ("s", "alice", "one", status)
    assert (record.reason, record.message) == (("PodFailed", "exit code 1") if phase else (None, None))
    assert records.is_live(held) == (status not in {"Failed", "Expired"})


def test_an_expired_sandbox_says_which_limit_ended_it() -> None:
    expired = {"type": "Expired", "status": "True", "reason": "IdleTimeout", "message": "not used for 30 minutes"}
    held = sandbox("s", claim=held_by("alice"), conditions=[not_ready("PodFailed"), expired])
    record = record_of(held)
    assert (record.status, record.reason, record.message) == ("Expired", "IdleTimeout", "not used for 30 minutes")


@pytest.mark.parametrize(("in_force", "told"), [("none", "none"), (None, "web")])
def test_a_record_tells_the_network_that_is_in_force_and_not_the_one_that_is_wished_for(
    in_force: str | None, told: str
) -> None:
    raw = body("s", claim=held_by("alice"))
    raw["spec"]["network"] = "web"
    raw["status"]["network"] = in_force
    held = Sandbox.model_validate(raw)
    assert record_of(held).network == told


def test_a_record_knows_its_end_before_the_operator_has_written_it() -> None:
    raw = body("s", claim=held_by("alice", time="2026-01-01T00:00:00Z"))
    raw["spec"]["lifetime"] = {"ttl": 100, "idleTimeout": 60}
    raw["metadata"]["annotations"] = {names.ANNOTATION_LAST_ACTIVITY: "2026-01-01T00:00:30Z"}
    raw["status"]["lastActivityTime"] = "2026-01-01T00:00:10Z"
    held = Sandbox.model_validate(raw)
    record = record_of(held)
    assert record.last_activity == datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
    assert record.expires == datetime(2026, 1, 1, 0, 1, 30, tzinfo=UTC)


def test_what_a_claimer_notes_of_a_sandbox_is_kept_with_it() -> None:
    noted = (("who", "me"), ("ü", '"'))
    new = claims.new_sandbox("sbx-1", wanted(metadata=noted), "f00d")
    assert record_of(Sandbox.model_validate(new)).metadata == noted
    for text in ("[1]", "{", "5"):
        new["metadata"]["annotations"][names.ANNOTATION_METADATA] = text
        assert record_of(Sandbox.model_validate(new)).metadata == ()


@pytest.mark.parametrize("note", ["", "yesterday", "2026-01-01T00:00:00"])
def test_a_note_of_use_that_makes_no_sense_is_ignored(note: str) -> None:
    raw = body("s", claim=held_by("alice"))
    raw["metadata"]["annotations"] = {names.ANNOTATION_LAST_ACTIVITY: note}
    assert records.last_activity(Sandbox.model_validate(raw)) is None


def test_only_a_warm_ready_sandbox_that_stays_can_be_claimed() -> None:
    assert records.is_claimable(sandbox("w"))
    assert not records.is_claimable(sandbox("w", claim=held_by("alice")))
    assert not records.is_claimable(sandbox("w", conditions=[not_ready("Starting")]))
    going = body("w")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not records.is_claimable(Sandbox.model_validate(going))
