"""When a status shows another last use and another end: as seldom as can be, since each costs a write."""

from typing import Any

from sandpod_api.base import rfc3339
from sandpod_api.types import Sandbox
from sandpod_operator.model.observed import ObservedSandbox
from sandpod_operator.status.sandbox import compute_status
from support.operator.world import NOW, ago, sandbox_object


def noted(seconds_ago: float, status: Any) -> Sandbox:
    made = sandbox_object(claimed=3000)
    made["metadata"]["annotations"] = {"sandpod.dev/last-activity": rfc3339(ago(seconds_ago))}
    return Sandbox.model_validate({**made, "status": status})


def test_use_moves_the_end_in_the_status_only_when_it_moved_far() -> None:
    shown = {
        "lastActivityTime": rfc3339(ago(200)),
        "expiresAt": rfc3339(ago(200 - 1800)),
        "observedGeneration": 1,
    }
    near = compute_status(ObservedSandbox(sandbox=noted(100, shown)), NOW)
    far = compute_status(ObservedSandbox(sandbox=noted(10, shown)), NOW)
    assert (near.last_activity_time, near.expires_at) == (ago(200), ago(200 - 1800))
    assert (far.last_activity_time, far.expires_at) == (ago(10), ago(10 - 1800))


def test_shown_end_that_has_passed_is_moved_at_once() -> None:
    shown = {"lastActivityTime": rfc3339(ago(1800)), "expiresAt": rfc3339(NOW), "observedGeneration": 1}
    status = compute_status(ObservedSandbox(sandbox=noted(1700, shown)), NOW)
    assert status.expires_at == ago(-100)
