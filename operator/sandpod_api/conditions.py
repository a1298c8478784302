"""The conditions of a Sandbox and a pool, every reason with a sentence and what to do, and how a condition is set.

The labels of metrics come from the same lists. Which reason applies is the operator's decision.
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
    OPEN_NETWORK_ALLOWED = "OpenNetworkAllowed"
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
    Reason.POD_PENDING: "The pod has not been created yet.",
    Reason.SCHEDULED: "The pod is assigned to a node.",
    Reason.UNSCHEDULABLE: "No node can run the pod.",
    Reason.QUOTA_EXCEEDED: "The namespace's quota leaves no room for the pod.",
    Reason.ADMISSION_REFUSED: "The API server refused the pod.",
    Reason.TEMPLATE_NOT_FOUND: "The SandboxTemplate does not exist.",
    Reason.PROFILE_NOT_FOUND: "The template has no network profile of that name.",
    Reason.IMAGE_PULL_FAILED: "The image can't be pulled.",
    Reason.STARTING: "The runner is starting.",
    Reason.START_FAILED: "The container can't be started.",
    Reason.START_RETRIED: "The container runtime failed, so a new pod is tried once.",
    Reason.READY: "The runner accepts runs.",
    Reason.SUSPENDED: "The sandbox is suspended: it has no pod, and its persistent workspace is kept.",
    Reason.RESUMED: "The sandbox was resumed: the files of a persistent workspace are kept, processes are gone.",
    Reason.POD_FAILED: "The pod has ended.",
    Reason.OUT_OF_MEMORY: "The kernel killed the sandbox because it ran out of memory.",
    Reason.EVICTED: "The node evicted the pod.",
    Reason.NODE_LOST: "The pod or its node is gone.",
    Reason.PROBE_PENDING: "The runner has not probed the isolation yet.",
    Reason.PROBED: "The runner probed the isolation from inside and found it intact.",
    Reason.NETWORK_OPEN: "The runner reached an address that it must not reach.",
    Reason.OPEN_NETWORK_ALLOWED: "The network is open, which the operator allows: a new pod serves anyway.",
    Reason.KERNEL_SHARED: "The sandbox sees the node's own kernel.",
    Reason.NODE_UNKNOWN: "The operator may not read nodes.",
    Reason.APPLIED: "The network profile is in force.",
    Reason.APPLYING: "The network profile is being applied.",
    Reason.PROFILE_REFUSED: "The network profile can't be applied.",
    Reason.ALIVE: "The lifetime has not ended.",
    Reason.TTL_EXPIRED: "The lifetime (ttl) has ended.",
    Reason.IDLE_TIMEOUT: "The sandbox was idle for its whole idle timeout.",
    Reason.POOL_FULL: "All warm sandboxes are ready.",
    Reason.POOL_FILLING: "Some warm sandboxes are still starting.",
    Reason.POOL_EMPTY: "No warm sandbox is ready.",
    Reason.POOL_BLOCKED: "Warm sandboxes can't start; the message says why.",
}


MEANINGS: dict[ConditionType, str] = {
    ConditionType.POD_SCHEDULED: "Whether the pod has a node.",
    ConditionType.NETWORK_ISOLATED: "Whether all that must be out of reach is; the runner tries it from inside.",
    ConditionType.KERNEL_ISOLATED: "Whether it has its own kernel; reported if the template names a RuntimeClass.",
    ConditionType.NETWORK_APPLIED: "Whether the network profile of the spec is in force.",
    ConditionType.READY: "Whether it accepts runs; if False, the reason says what prevents that or what ended it.",
    ConditionType.EXPIRED: "Whether its lifetime has ended.",
    ConditionType.SUSPENDED: "Whether it is suspended; reported once it has been.",
    ConditionType.AVAILABLE: "For a pool: whether a warm sandbox can be claimed.",
    ConditionType.PROGRESSING: "For a pool: whether warm sandboxes are being created.",
}

ADVICE: dict[Reason, str] = {
    Reason.UNSCHEDULABLE: "The message comes from the scheduler: add nodes, or lower the template's resources.",
    Reason.QUOTA_EXCEEDED: "Close sandboxes or raise the ResourceQuota; the operator tries again when a pod leaves.",
    Reason.ADMISSION_REFUSED: "The message names the rule; change the template. The operator tries again.",
    Reason.TEMPLATE_NOT_FOUND: "Create the SandboxTemplate that templateRef names; the sandbox then starts.",
    Reason.PROFILE_NOT_FOUND: "Set spec.network to one of the template's networkProfiles, or to none.",
    Reason.IMAGE_PULL_FAILED: "The message comes from the registry: correct the template's image or imagePullSecrets.",
    Reason.START_FAILED: "The message says why; correct the template, and create another Sandbox.",
    Reason.START_RETRIED: "Nothing yet; if the second pod fails too, check the node's container runtime.",
    Reason.SUSPENDED: "Use it, or set spec.operatingMode to Running.",
    Reason.RESUMED: "Restart what has to run in it.",
    Reason.POD_FAILED: "Create another Sandbox; the message says how this one ended.",
    Reason.OUT_OF_MEMORY: "Create another Sandbox; raise resources.memory of the template if it happens often.",
    Reason.EVICTED: "Create another Sandbox; the message says what the node ran short of, or who took the pod away.",
    Reason.NODE_LOST: "Create another Sandbox; check the node if nobody deleted the pod.",
    Reason.NETWORK_OPEN: "Install or repair a network plugin that enforces NetworkPolicies; if the template's "
    "profile opens the address that the message names, narrow it.",
    Reason.OPEN_NETWORK_ALLOWED: "Set the operator's allow_open_network to false if you don't want that.",
    Reason.KERNEL_SHARED: "Correct the node's handler for the template's RuntimeClass.",
    Reason.NODE_UNKNOWN: "Let the operator read nodes (operator.readNodes in the chart), to verify the kernel.",
    Reason.PROFILE_REFUSED: "The message says why: name another profile, narrow this one in the template, or create "
    "another Sandbox with it if only a running pod can't have it.",
    Reason.TTL_EXPIRED: "Create another Sandbox, with a longer lifetime.ttl if this one was too short.",
    Reason.IDLE_TIMEOUT: "Create another Sandbox, with a longer lifetime.idleTimeout if this one was too short.",
    Reason.POOL_EMPTY: "Wait, or raise the pool's replicas.",
    Reason.POOL_BLOCKED: "Do what the reason in the message asks for; the operator tries again.",
}
"""What to do about a reason; one that is not listed needs nothing done."""


def explain(reason: Reason) -> str:
    """Return what a reason means and what to do about it."""
    return " ".join(filter(None, (SENTENCES[reason], ADVICE.get(reason))))


_TYPES = "\n".join(["What is observed.", *(f"{kind}: {meaning}" for kind, meaning in MEANINGS.items())])
_REASONS = "\n".join(["Why, as one word.", *(f"{reason}: {explain(reason)}" for reason in Reason)])


class Condition(ApiModel):
    """One observed fact, in the form that `kubectl wait` and `kubectl describe` know."""

    type: Annotated[str, Field(max_length=64, description=_TYPES)]
    status: Annotated[ConditionStatus, Field(description="Whether it is so.")]
    reason: Annotated[str, Field(max_length=64, description=_REASONS)]
    message: Annotated[str, Field(max_length=1024, description="Why, as a sentence.")] = ""
    observed_generation: Annotated[int, Field(ge=0, description="The generation that was observed.")] = 0
    last_transition_time: Annotated[Timestamp | None, Field(description="When the status last changed.")] = None


def find(conditions: Sequence[Condition], kind: ConditionType) -> Condition | None:
    """Return the condition of that type, or None."""
    for condition in conditions:  # A generator takes twice as long, and a pool's every event asks all its sandboxes.
        if condition.type == kind:
            return condition
    return None


def is_true(conditions: Sequence[Condition], kind: ConditionType) -> bool:
    """Return whether the condition is there and True."""
    found = find(conditions, kind)
    return found is not None and found.status == "True"


def says(conditions: Sequence[Condition], kind: ConditionType, reason: Reason) -> bool:
    """Return whether the condition is there with that reason."""
    found = find(conditions, kind)
    return found is not None and found.reason == reason


def merge(old: Sequence[Condition], new: Sequence[Condition], now: datetime) -> list[Condition]:
    """Return the new conditions with transition times: the old time where the status is the same, else `now`."""
    merged = []
    for condition in new:
        before = next((c for c in old if c.type == condition.type), None)
        same = before is not None and before.status == condition.status and before.last_transition_time
        time = before.last_transition_time if before is not None and same else now
        merged.append(condition.model_copy(update={"last_transition_time": time}))
    return merged
