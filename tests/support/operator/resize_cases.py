"""More states of the world, as in `cases`: of pods that were made ahead with lower requests."""

import json
from typing import Any, Final

from sandpod_api import names
from sandpod_api.conditions import Reason
from sandpod_operator.model.pod import Pod
from support.operator.cases import Case, observed, refused
from support.operator.world import a_sandbox, pod_object, running

FULL: Final = {"cpu": "0.05", "memory": "256Mi"}
WARM: Final = {"cpu": "10m", "memory": "64Mi"}


def pod(requests: dict[str, str], *, told: Any = None, note: str = json.dumps(FULL)) -> Pod:
    """A running pod with such requests; the node says of its resize what is told."""
    status = running()
    status["conditions"] += [told] if told else []
    made = pod_object(status=status, annotations={names.ANNOTATION_CLAIMED_REQUESTS: note})
    made["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": {"cpu": "1", "memory": "1Gi"}}
    return Pod.model_validate(made)


def says(kind: str, reason: str, message: str = "") -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason, "message": message}


# As the API server writes them.
RAISED: Final = {"cpu": "50m", "memory": "256Mi", "ephemeral-storage": "1Gi"}

RESIZES: Final = {
    "waits with lower requests": Case(observed(sandbox=a_sandbox(), pod=pod(WARM)), "Ready=True/Ready", "Warm"),
    "claimed, and its requests are not raised yet": Case(
        observed(pod=pod(WARM)), "Ready=True/Ready Resized=False/ResizePending", "Ready"
    ),
    "requests raised": Case(observed(pod=pod(RAISED)), "Ready=True/Ready Resized=True/Resized", "Ready"),
    "requests raised, and the node is at it": Case(
        observed(pod=pod(RAISED, told=says("PodResizeInProgress", ""))), "Resized=True/Resized", "Ready"
    ),
    "node fails to raise them": Case(
        observed(pod=pod(RAISED, told=says("PodResizeInProgress", "Error", "cgroup is busy"))),
        "Ready=True/Ready Resized=False/ResizePending",
        "Ready",
    ),
    "node is full": Case(
        observed(pod=pod(RAISED, told=says("PodResizePending", "Deferred", "Node didn't have enough memory"))),
        "Ready=True/Ready Resized=False/ResizePending",
        "Ready",
    ),
    "node is too small": Case(
        observed(pod=pod(RAISED, told=says("PodResizePending", "Infeasible", "Node didn't have enough capacity"))),
        "Ready=True/Ready Resized=False/ResizeInfeasible",
        "Ready",
    ),
    "quota is full": Case(
        observed(pod=pod(WARM), resize_refusal=refused(Reason.QUOTA_EXCEEDED, "exceeded quota: memory")),
        "Ready=True/Ready Resized=False/QuotaExceeded",
        "Ready",
    ),
    "requests that somebody else wrote": Case(observed(pod=pod(WARM, note="[1]")), "Ready=True/Ready", "Ready"),
}
