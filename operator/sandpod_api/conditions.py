"""The conditions of a Sandbox and a pool, every reason with a sentence, and how a condition is set.

Called by the operator (which computes them) and by the gateway (which tells a caller why). Metric labels come from
the same lists. It holds no policy: which reason applies is the operator's `status.py`.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from sandpod_api.base import ApiModel, Timestamp

ConditionStatus = Literal["True", "False", "Unknown"]


class ConditionType(StrEnum):
    """What is observed of a Sandbox; the last two are a pool's."""

    POD_SCHEDULED = "PodScheduled"
    NETWORK_ISOLATED = "NetworkIsolated"
    KERNEL_ISOLATED = "KernelIsolated"
    NETWORK_APPLIED = "NetworkApplied"
    READY = "Ready"
    EXPIRED = "Expired"
    SUSPENDED = "Suspended"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"


class Reason(StrEnum):
    """Why a condition has its status. `SENTENCES` has each in words."""

    POD_PENDING = "PodPending"
    SCHEDULED = "Scheduled"
    UNSCHEDULABLE = "Unschedulable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    ADMISSION_REFUSED = "AdmissionRefused"
    TEMPLATE_NOT_FOUND = "TemplateNotFound"
    PROFILE_NOT_FOUND = "ProfileNotFound"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    STARTING = "Starting"
    START_FAILED = "StartFailed"
    START_RETRIED = "StartRetried"
    READY = "Ready"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    POD_FAILED = "PodFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    PROBE_PENDING = "ProbePending"
    PROBED = "Probed"
    NETWORK_OPEN = "NetworkOpen"
    KERNEL_SHARED = "KernelShared"
    NODE_UNKNOWN = "NodeUnknown"
    APPLIED = "Applied"
    APPLYING = "Applying"
    PROFILE_REFUSED = "ProfileRefused"
    ALIVE = "Alive"
    TTL_EXPIRED = "TTLExpired"
    IDLE_TIMEOUT = "IdleTimeout"
    POOL_FULL = "PoolFull"
    POOL_FILLING = "PoolFilling"
    POOL_EMPTY = "PoolEmpty"
    POOL_BLOCKED = "PoolBlocked"


SENTENCES: dict[Reason, str] = {
    Reason.POD_PENDING: "The pod has not been made yet.",
    Reason.SCHEDULED: "The pod has a node.",
    Reason.UNSCHEDULABLE: "No node can take the pod.",
    Reason.QUOTA_EXCEEDED: "The namespace's quota leaves no room for the pod.",
    Reason.ADMISSION_REFUSED: "The API server refused the pod.",
    Reason.TEMPLATE_NOT_FOUND: "The SandboxTemplate does not exist.",
    Reason.PROFILE_NOT_FOUND: "The template has no network profile of that name.",
    Reason.IMAGE_PULL_FAILED: "The image can't be pulled.",
    Reason.STARTING: "The runner is starting.",
    Reason.START_FAILED: "The container can't be started.",
    Reason.START_RETRIED: "The container runtime failed, so a fresh pod is tried, once.",
    Reason.READY: "The runner takes runs.",
    Reason.SUSPENDED: "The sandbox is suspended: it has no pod, and its persistent workspace stays.",
    Reason.RESUMED: "The sandbox was resumed: files of a persistent workspace are there, processes are gone.",
    Reason.POD_FAILED: "The pod has ended.",
    Reason.OUT_OF_MEMORY: "The kernel ended the sandbox because it ran out of memory.",
    Reason.EVICTED: "The node evicted the pod.",
    Reason.NODE_LOST: "The pod or its node is gone.",
    Reason.PROBE_PENDING: "The runner has not probed the isolation yet.",
    Reason.PROBED: "The runner probed the isolation from inside and found it whole.",
    Reason.NETWORK_OPEN: "The runner reached an address that it must not reach.",
    Reason.KERNEL_SHARED: "The sandbox sees the node's own kernel.",
    Reason.NODE_UNKNOWN: "The operator may not look at nodes.",
    Reason.APPLIED: "The network profile is in force.",
    Reason.APPLYING: "The network profile is being put in force.",
    Reason.PROFILE_REFUSED: "The network profile can't be put in force in a pod that runs.",
    Reason.ALIVE: "The lifetime has not ended.",
    Reason.TTL_EXPIRED: "The lifetime (ttl) has ended.",
    Reason.IDLE_TIMEOUT: "The sandbox was not used for its idle timeout.",
    Reason.POOL_FULL: "All warm sandboxes are ready.",
    Reason.POOL_FILLING: "Some warm sandboxes are still starting.",
    Reason.POOL_EMPTY: "No warm sandbox is ready.",
    Reason.POOL_BLOCKED: "Warm sandboxes can't start; the message says why.",
}


class Condition(ApiModel):
    """One observed fact, in the form that `kubectl wait` and `kubectl describe` know."""

    type: Annotated[str, Field(max_length=64, description="What is observed.")]
    status: Annotated[ConditionStatus, Field(description="Whether it is so.")]
    reason: Annotated[str, Field(max_length=64, description="Why, as one word.")]
    message: Annotated[str, Field(max_length=1024, description="Why, as a sentence.")] = ""
    observed_generation: Annotated[int, Field(ge=0, description="The generation that was looked at.")] = 0
    last_transition_time: Annotated[Timestamp | None, Field(description="When the status last changed.")] = None


def find(conditions: Sequence[Condition], kind: ConditionType) -> Condition | None:
    """Return the condition of that type, or None."""
    return next((c for c in conditions if c.type == kind), None)


def is_true(conditions: Sequence[Condition], kind: ConditionType) -> bool:
    """Tell whether the condition is there and True."""
    found = find(conditions, kind)
    return found is not None and found.status == "True"


def merge(old: Sequence[Condition], new: Sequence[Condition], now: datetime) -> list[Condition]:
    """Return the new conditions with transition times: the old time where the status is the same, else `now`."""
    merged = []
    for condition in new:
        before = next((c for c in old if c.type == condition.type), None)
        same = before is not None and before.status == condition.status and before.last_transition_time
        time = before.last_transition_time if before is not None and same else now
        merged.append(condition.model_copy(update={"last_transition_time": time}))
    return merged
