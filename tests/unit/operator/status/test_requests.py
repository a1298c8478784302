"""What a claimed sandbox says of its requests, and when they are asked for."""

from dataclasses import replace
from datetime import timedelta

import pytest

from sandpod_api.conditions import Reason
from sandpod_operator.status.requests import resized, to_resize
from sandpod_operator.status.sandbox import compute_status
from support.operator.cases import observed, refused
from support.operator.resize_cases import FULL, RAISED, RESIZES, WARM, pod
from support.operator.world import NOW, a_sandbox


@pytest.mark.parametrize("name", RESIZES)
def test_status_says_what_became_of_the_requests_and_the_sandbox_works_in_any_case(name: str) -> None:
    case = RESIZES[name]
    found = compute_status(case.state, NOW)
    told = {f"{c.type}={c.status}/{c.reason}" for c in found.conditions}
    assert set(case.conditions.split()) <= told
    assert ("Resized" in case.conditions) == (resized(case.state) is not None)
    assert (found.phase, found.reason) == (case.phase, None)


def test_node_s_own_words_are_part_of_the_message() -> None:
    told = resized(RESIZES["node is full"].state)
    assert told is not None
    assert told.message == "Its pod's requests have not been raised yet: Node didn't have enough memory"


def test_higher_requests_are_asked_for_at_the_claim_once_and_again_when_a_refusal_is_over() -> None:
    claimed = observed(pod=pod(WARM))
    assert to_resize(claimed, NOW) == FULL
    assert to_resize(replace(claimed, sandbox=a_sandbox()), NOW) is None
    assert to_resize(observed(pod=pod(RAISED)), NOW) is None
    assert to_resize(observed(pod=pod({"memory": "1Gi"})), NOW) == FULL
    refusal = refused(Reason.QUOTA_EXCEEDED, "exceeded quota")
    waits = replace(claimed, resize_refusal=refusal)
    assert to_resize(waits, NOW) is None
    assert to_resize(waits, refusal.until) == FULL
    assert to_resize(waits, NOW + timedelta(hours=1)) == FULL


def test_amount_in_a_unit_of_its_own_is_not_asked_for_for_ever() -> None:
    assert to_resize(observed(pod=pod({"cpu": "500u", "memory": "256Mi"})), NOW) is None
