"""Whether a claimed sandbox has the requests of its template, where its pod was made ahead with lower ones.

Its limits are the same all the time, so nothing that it may use depends on this: only what is set aside for it.
"""

from datetime import datetime
from math import isclose

from sandpod_api.conditions import Condition, ConditionType, Reason
from sandpod_api.fields import parse_quantity
from sandpod_operator.model.observed import ObservedSandbox
from sandpod_operator.model.pod import Pod
from sandpod_operator.status.failures import Cause, cause


def to_resize(observed: ObservedSandbox, now: datetime) -> dict[str, str] | None:
    """Return the requests that the pod is to have now, or None where it has them or can't get them."""
    pod, refusal = observed.pod, observed.resize_refusal
    if pod is None or observed.sandbox.spec.claim is None or pod.deleting or pod.ended or not pod.claimed_requests:
        return None
    waits = refusal is not None and refusal.until > now
    return None if waits or _has(pod) else pod.claimed_requests


def resized(observed: ObservedSandbox) -> Condition | None:
    """Return whether the pod has the template's requests; None for one that has had them from the start."""
    pod = observed.pod
    if pod is None or observed.sandbox.spec.claim is None or not pod.claimed_requests:
        return None
    if not _has(pod):
        refusal = observed.resize_refusal
        why = cause(refusal.reason, refusal.message) if refusal is not None else cause(Reason.RESIZE_PENDING)
    else:
        why = _unfinished(pod) or cause(Reason.RESIZED)
    return why.condition(ConditionType.RESIZED, status=why.reason == Reason.RESIZED)


def _unfinished(pod: Pod) -> Cause | None:
    """Return why the node has not done what the API server took, if it says so."""
    pending, doing = pod.condition("PodResizePending"), pod.condition("PodResizeInProgress")
    if pending is not None and pending.status == "True":
        reason = Reason.RESIZE_INFEASIBLE if pending.reason == "Infeasible" else Reason.RESIZE_PENDING
        return cause(reason, pending.message)
    # Without an error it is done in a moment: to say so would cost two writes.
    if doing is not None and doing.status == "True" and doing.reason == "Error":
        return cause(Reason.RESIZE_PENDING, doing.message)
    return None


def _has(pod: Pod) -> bool:
    requests = pod.container_spec.requests
    return all(_is_same(requests.get(kind, "0"), amount) for kind, amount in pod.claimed_requests.items())


def _is_same(one: str, other: str) -> bool:
    """Return whether two quantities are equal, since the API server may write them differently."""
    try:
        return isclose(parse_quantity(one), parse_quantity(other))
    except ValueError:
        return True  # in a unit that is not known here: to ask again and again would change nothing
