"""State in, plan out, for pools; and pools that are followed to their end, whatever state they begin in."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_api.conditions import ConditionType, Reason, find
from sandpod_api.types import Sandbox, SandboxPoolStatus, SandboxTemplate
from sandpod_operator.manifests.pod import template_hash
from sandpod_operator.model.actions import Create, Delete, Emit, PatchStatus
from sandpod_operator.model.observed import ObservedPool, PoolBackoff
from sandpod_operator.planning import pool as plan_pool_module
from sandpod_operator.planning.pool import PoolPlan, is_warm, plan_pool
from sandpod_operator.status.sandbox import compute_status
from support.operator.cases import CASES
from support.operator.resize_cases import RESIZES
from support.operator.world import NOW, a_pool, a_sandbox, a_template, ago, condition, settings

SETTINGS = settings()
TEMPLATE = a_template()
SUFFIXES = tuple(f"new{i:05d}" for i in range(25))
MANY = tuple(f"new{i:05d}" for i in range(100))
READY = {"phase": "Warm", "conditions": [condition("Ready", "True", "Ready", since=50)]}


def failing(reason: str = "StartFailed", *, since: float = 0) -> dict[str, Any]:
    why = condition("Ready", "False", reason, since=since, message=f"Because of {reason}.")
    return {"phase": "Failed", "reason": reason, "conditions": [why]}


def member(name: str, *, status: Any = None, age: float = 60, stale: bool = False) -> Sandbox:
    meta = {
        "creationTimestamp": rfc3339(ago(age)),
        "labels": {names.LABEL_POOL: "warm", names.LABEL_STATE: names.STATE_WARM},
        "annotations": {names.ANNOTATION_TEMPLATE_HASH: "old" if stale else template_hash(TEMPLATE)},
    }
    return a_sandbox(name, status=status, meta=meta)


def observed(*members: Sandbox, replicas: int = 2, **parts: Any) -> ObservedPool:
    pool = a_pool(replicas=replicas, **parts.pop("pool", {}))
    known = {name: parts.pop(name) for name in ("failures", "status_written") if name in parts}
    parts["backoff"] = replace(parts.get("backoff", PoolBackoff()), **known)
    return ObservedPool(**{"pool": pool, "members": members, "template": TEMPLATE, "suffixes": SUFFIXES, **parts})


def plan(state: ObservedPool) -> PoolPlan:
    return plan_pool(state, SETTINGS, NOW)


def created(made: PoolPlan) -> list[str]:
    return [a.manifest["metadata"]["name"] for a in made.actions if isinstance(a, Create)]


def deleted(made: PoolPlan) -> list[str]:
    return [a.key.name for a in made.actions if isinstance(a, Delete)]


def status(made: PoolPlan) -> SandboxPoolStatus:
    patch = next(a for a in made.actions if isinstance(a, PatchStatus))
    return SandboxPoolStatus.model_validate({k: v for k, v in patch.status.items() if v is not None})


def test_empty_pool_is_filled_at_once() -> None:
    made = plan(observed(replicas=3))
    assert created(made) == ["warm-new00000", "warm-new00001", "warm-new00002"]
    assert (status(made).replicas, status(made).ready_replicas, status(made).reason) == (0, 0, "PoolFilling")


def test_only_what_is_missing_is_made_though_nothing_is_ready_yet() -> None:
    assert created(plan(observed(member("a"), replicas=2))) == ["warm-new00000"]
    assert created(plan(observed(member("a"), member("b"), replicas=2))) == []


def test_pool_starts_with_a_few_and_twice_as_many_for_each_that_works() -> None:
    assert len(created(plan(observed(replicas=100)))) == 4
    few = [member(f"m{i}") for i in range(4)]
    assert created(plan(observed(*few, replicas=100))) == []
    first = [member("m0", status=READY), *few[1:]]
    assert len(created(plan(observed(*first, replicas=100)))) == 5, "eight may be under way, and three are"
    working = [member(f"m{i}", status=READY) for i in range(3)]
    assert len(created(plan(observed(*working, few[3], replicas=100, suffixes=MANY)))) == 31


def test_pool_that_is_known_to_work_is_refilled_at_once_though_all_were_claimed() -> None:
    full = plan(observed(*(member(f"m{i}", status=READY) for i in range(20)), replicas=20))
    assert len(created(plan(observed(replicas=20, backoff=full.backoff, suffixes=MANY)))) == 20


def test_pool_of_a_changed_template_starts_with_a_few_again() -> None:
    works = plan(observed(*(member(f"m{i}", status=READY) for i in range(20)), replicas=20))
    changed = a_template(image="sandpod/sandbox:next")
    assert len(created(plan(observed(replicas=20, backoff=works.backoff, template=changed, suffixes=MANY)))) == 4


def test_one_failure_slows_a_pool_down_and_what_works_speeds_it_up() -> None:
    working = [member(f"m{i}", status=READY) for i in range(10)]
    works = plan(observed(*working, replicas=20)).backoff
    broken = member("n0", status=failing("ImagePullFailed"))
    failed = plan(observed(*working, broken, replicas=20, backoff=works, suffixes=MANY))
    assert len(created(failed)) == 1
    better = plan(
        observed(*working, broken, member("n1", status=READY), replicas=20, backoff=failed.backoff, suffixes=MANY)
    )
    assert len(created(better)) == 2


def test_one_pass_makes_no_more_than_the_burst() -> None:
    many = [member(f"m{i}", status=READY) for i in range(50)]
    assert len(created(plan(observed(*many, replicas=100)))) == len(SUFFIXES)


@pytest.mark.parametrize("reason", ["ImagePullFailed", "AdmissionRefused", "StartFailed"])
def test_pool_whose_sandboxes_can_not_start_makes_a_few_and_no_more(reason: str) -> None:
    bad = [member(f"m{i}", status=failing(reason)) for i in range(4)]
    assert created(plan(observed(*bad, replicas=100))) == []
    assert created(plan(observed(*bad[:1], replicas=100))) == [], "while one keeps its place"


def test_full_pool_says_so() -> None:
    made = status(plan(observed(member("a", status=READY), member("b", status=READY))))
    available, progressing = (find(made.conditions, k) for k in (ConditionType.AVAILABLE, ConditionType.PROGRESSING))
    assert available is not None
    assert progressing is not None
    assert (available.status, available.reason) == ("True", "PoolFull")
    assert (progressing.status, progressing.reason) == ("False", "PoolFull")
    assert (made.reason, made.replicas, made.ready_replicas) == (None, 2, 2)
    assert made.selector == "sandpod.dev/pool=warm,sandpod.dev/state=warm"


def test_scale_down_takes_failed_then_unready_then_the_oldest() -> None:
    members = (
        member("old", status=READY, age=500),
        member("young", status=READY, age=100),
        member("starting"),
        member("broken", status=failing()),
    )
    assert deleted(plan(observed(*members, replicas=3))) == ["broken"]
    assert deleted(plan(observed(*members, replicas=2))) == ["broken", "starting"]
    assert deleted(plan(observed(*members, replicas=1))) == ["broken", "starting", "old"]
    assert sorted(deleted(plan(observed(*members, replicas=0)))) == ["broken", "old", "starting", "young"]


def test_deletion_names_the_version_that_was_seen_so_that_a_claim_wins() -> None:
    action = plan(observed(member("a", status=READY), replicas=0)).actions[0]
    assert isinstance(action, Delete)
    assert (action.metadata.uid, action.metadata.resource_version, action.unchanged) == ("uid-a", "1", True)


def test_changed_template_is_followed_one_by_one_and_never_below_the_replicas() -> None:
    old = [member(name, status=READY, stale=True) for name in ("a", "b", "c")]
    first = plan(observed(*old, replicas=3))
    assert (created(first), deleted(first)) == (["warm-new00000"], [])
    waits = plan(observed(*old, member("n"), replicas=3))
    assert (created(waits), deleted(waits)) == ([], [])
    ready = plan(observed(*old, member("n", status=READY), replicas=3))
    assert len(deleted(ready)) == 1


def test_surge_bounds_how_many_are_replaced_at_once() -> None:
    old = [member(name, status=READY, stale=True) for name in ("a", "b", "c", "d")]
    made = plan(observed(*old, replicas=4, pool={"updateStrategy": {"maxSurge": 2}}))
    assert len(created(made)) == 2


def test_outdated_sandbox_that_never_got_ready_is_replaced_at_once() -> None:
    made = plan(observed(member("a", stale=True), member("b", status=failing(), stale=True), replicas=2))
    assert sorted(deleted(made)) == ["a", "b"]
    assert len(created(made)) == 2


def test_sandbox_that_waited_too_long_is_replaced() -> None:
    old = member("a", status=READY, age=3600)
    made = plan(observed(old, replicas=1, pool={"maxAge": 3600}))
    assert (len(created(made)), deleted(made)) == (1, [])
    replaced = plan(observed(old, member("n", status=READY), replicas=1, pool={"maxAge": 3600}))
    assert deleted(replaced) == ["a"]


def test_pool_is_looked_at_when_its_oldest_sandbox_gets_too_old() -> None:
    made = plan(observed(member("a", status=READY, age=60), member("b", status=READY), pool={"maxAge": 100}))
    assert made.due == NOW + timedelta(seconds=40)


def test_failed_sandbox_keeps_its_place_longer_the_more_have_failed() -> None:
    for failures, wait in ((0, 5), (1, 10), (3, 40), (60, 300)):
        bad = member("a", status=failing(since=wait - 1))
        waits = plan(observed(bad, replicas=1, failures=failures))
        assert (created(waits), deleted(waits), waits.backoff.failures) == ([], [], failures)
        assert waits.due == NOW + timedelta(seconds=1)
        over = plan(observed(member("a", status=failing(since=wait)), replicas=1, failures=failures))
        assert (len(created(over)), deleted(over), over.backoff.failures) == (1, ["a"], failures + 1)


@pytest.mark.parametrize("reason", ["NodeLost", "Evicted"])
def test_lost_warm_sandbox_is_replaced_at_once_and_blames_nobody(reason: str) -> None:
    made = plan(observed(member("a", status=failing(reason)), replicas=1, failures=4))
    assert (len(created(made)), deleted(made), made.backoff.failures) == (1, ["a"], 4)


def test_failures_are_forgotten_when_a_current_sandbox_is_ready() -> None:
    assert plan(observed(member("a", status=READY), replicas=1, failures=9)).backoff.failures == 0
    outdated = member("a", status=READY, stale=True)
    assert plan(observed(outdated, replicas=1, failures=9)).backoff.failures == 9


def test_blocked_pool_says_why_in_the_words_of_most_of_its_sandboxes() -> None:
    made = plan(
        observed(
            member("a", status=failing("OutOfMemory")),
            member("b", status=failing("ImagePullFailed")),
            member("c", status=failing("ImagePullFailed")),
            replicas=3,
        )
    )
    text = "ImagePullFailed: Because of ImagePullFailed."
    for kind in (ConditionType.AVAILABLE, ConditionType.PROGRESSING):
        found = find(status(made).conditions, kind)
        assert found is not None
        assert (found.status, found.reason, found.message) == ("False", "PoolBlocked", text)
    event = made.actions[-1]
    assert isinstance(event, Emit)
    assert (event.reason, event.message, event.kind) == ("PoolBlocked", text, "Warning")


def test_pool_that_waits_for_starting_sandboxes_is_empty_and_not_blocked() -> None:
    why = {"phase": "Pending", "conditions": [condition("Ready", "False", "Starting")]}
    made = status(plan(observed(member("a", status=why), member("b"))))
    available = find(made.conditions, ConditionType.AVAILABLE)
    assert available is not None
    assert (available.status, available.reason) == ("False", "PoolEmpty")


def test_missing_template_blocks_the_pool_and_keeps_what_is_there() -> None:
    made = plan(observed(member("a", status=READY), template=None))
    assert (created(made), deleted(made)) == ([], [])
    assert status(made).reason == "PoolBlocked"


POOLS = {
    "full": (observed(member("a", status=READY), member("b", status=READY)), "PoolFull PoolFull"),
    "one starts": (observed(member("a", status=READY)), "PoolFilling PoolFilling"),
    "all start": (observed(), "PoolEmpty PoolFilling"),
    "none can start": (
        observed(member("a", status=failing()), member("b", status=failing())),
        "PoolBlocked PoolBlocked",
    ),
    "as many as its claims ask for": (
        observed(member("a", status=READY), pool={"autoscale": {"maxReplicas": 9}}),
        "PoolFull PoolFull DesiredWithinRange",
    ),
    "no more than it may": (
        observed(member("a", status=READY), claims=200, pool={"autoscale": {"maxReplicas": 1}}),
        "PoolFull PoolFull TooManyReplicas",
    ),
    "no more than find a place": (
        observed(
            member("a", status=READY),
            member("b", status=failing("Unschedulable")),
            claims=200,
            pool={"autoscale": {"maxReplicas": 90}},
        ),
        "PoolFilling PoolBlocked PoolBlocked",
    ),
    "some can't": (observed(member("a", status=READY), member("b", status=failing())), "PoolFilling PoolBlocked"),
}


@pytest.mark.parametrize("name", POOLS)
def test_pool_says_whether_one_can_be_claimed_and_whether_more_come(name: str) -> None:
    state, reasons = POOLS[name]
    assert [(c.type, c.reason) for c in status(plan(state)).conditions] == list(
        zip(("Available", "Progressing", "ScalingLimited"), reasons.split(), strict=False)
    )


def test_pools_and_sandboxes_reach_every_reason_and_every_condition() -> None:
    told = [c for state, _ in POOLS.values() for c in status(plan(state)).conditions]
    told += [c for case in (CASES | RESIZES).values() for c in compute_status(case.state, NOW).conditions]
    # The others are those of tenants, which their own tests reach.
    of_tenants = {Reason.PROVISIONED, Reason.PROVISIONING_FAILED, Reason.NAMESPACE_TAKEN, Reason.NAME_TOO_LONG}
    assert {c.reason for c in told} == set(Reason) - of_tenants - {Reason.TOO_MANY_TENANTS}
    assert {c.type for c in told} == set(ConditionType)


def test_pool_that_wants_nothing_is_available() -> None:
    available = find(status(plan(observed(replicas=0))).conditions, ConditionType.AVAILABLE)
    assert available is not None
    assert available.status == "True"


def test_status_is_written_once_a_second_at_most() -> None:
    state = observed(member("a", status=READY), status_written=NOW)
    made = plan(state)
    assert not any(isinstance(a, PatchStatus) for a in made.actions)
    assert made.due == NOW + timedelta(seconds=1)


def test_pool_that_is_being_deleted_makes_nothing() -> None:
    going = a_pool().model_copy(update={"metadata": a_pool().metadata.model_copy(update={"deletion_timestamp": NOW})})
    assert plan(ObservedPool(pool=going, template=TEMPLATE, suffixes=SUFFIXES)) == PoolPlan(pool=going)


@st.composite
def pools(draw: st.DrawFn) -> ObservedPool:
    members = [
        member(
            f"m{i}",
            status=draw(st.sampled_from([None, READY, failing(), failing("NodeLost"), failing(since=10**6)])),
            age=draw(st.integers(0, 200)),
            stale=draw(st.booleans()),
        )
        for i in range(draw(st.integers(0, 12)))
    ]
    return observed(
        *members,
        replicas=draw(st.integers(0, 6)),
        failures=draw(st.integers(0, 20)),
        pool={"maxAge": draw(st.integers(60, 300)), "updateStrategy": {"maxSurge": draw(st.integers(1, 3))}},
    )


@given(pools())
def test_pool_never_grows_past_replicas_and_surge_and_takes_nothing_ready_without_need(state: ObservedPool) -> None:
    made = plan(state)
    spec = state.pool.spec
    gone = set(deleted(made))
    assert gone <= {m.metadata.name for m in state.members}
    assert len(gone) == len(deleted(made))
    left = [m for m in state.members if m.metadata.name not in gone]
    assert len(left) + len(created(made)) <= max(len(left), spec.replicas + spec.update_strategy.max_surge)
    ready_before, ready_after = (sum(is_warm(m) for m in group) for group in (state.members, left))
    assert ready_after >= min(ready_before, spec.replicas)


@given(pools())
def test_pool_reaches_its_replicas_all_up_to_date_when_everything_gets_ready(state: ObservedPool) -> None:
    spec = state.pool.spec
    # Ages are tried above; here they would make it go round for ever.
    pool = {"maxAge": 604800, "updateStrategy": {"maxSurge": spec.update_strategy.max_surge}}
    members = list(state.members)
    for turn in range(40):
        suffixes = tuple(f"t{turn}x{i}" for i in range(25))
        made = plan_pool(
            observed(*members, replicas=spec.replicas, suffixes=suffixes, pool=pool),
            SETTINGS,
            NOW + timedelta(seconds=400 * turn),
        )
        gone = deleted(made)
        left = [m for m in members if m.metadata.name not in gone]
        # Whatever only starts is ready by the next turn; what has failed stays so.
        members = [m if m.status.conditions else member(m.metadata.name, status=READY) for m in left]
        members += [member(name, status=READY) for name in created(made)]
    assert len(members) == spec.replicas
    assert all(is_warm(m) for m in members)
    assert {m.metadata.annotations[names.ANNOTATION_TEMPLATE_HASH] for m in members} <= {template_hash(TEMPLATE)}


def test_plan_hashes_the_template_once_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs for each event of each warm sandbox."""
    hashed = 0

    def counted(template: SandboxTemplate) -> str:
        nonlocal hashed
        hashed += 1
        return template_hash(template)

    monkeypatch.setattr(plan_pool_module, "template_hash", counted)
    members = [member(f"m{number}", status=READY) for number in range(50)]
    plan(observed(*members, replicas=50))
    assert hashed == 1


def test_new_sandboxes_are_made_some_at_a_time_and_all_else_one_after_the_other() -> None:
    works = plan(observed(*(member(f"m{i}", status=READY) for i in range(20)), replicas=20)).backoff
    made = plan(observed(member("old", status=READY, stale=True), replicas=20, backoff=works))
    batches = [[type(action).__name__ for action in batch] for batch in made.batches()]
    assert [len(batch) for batch in batches if batch[0] == "Create"] == [8, 8, 4]
    assert all(len(batch) == 1 for batch in batches if batch[0] != "Create")
    assert [action for batch in made.batches() for action in batch] == list(made.actions)
