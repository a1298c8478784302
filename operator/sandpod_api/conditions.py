"""The conditions of a Sandbox and a pool, every reason with a sentence and what to do, and how a condition is set."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal, Self

from pydantic import Field

from sandpod_api.base import ApiModel, Timestamp

ConditionStatus = Literal["True", "False", "Unknown"]


class _Explained(StrEnum):
    """A word with a sentence that says what it means."""

    sentence: str

    def __new__(cls, value: str, sentence: str = "") -> Self:  # without one it is looked up, not made
        member = str.__new__(cls, value)
        member._value_, member.sentence = value, sentence
        return member


class ConditionType(_Explained):
    """What is observed of a Sandbox; the last three are a pool's. A tenant has Ready alone."""

    POD_SCHEDULED = "PodScheduled", "Whether the pod has a node."
    NETWORK_ISOLATED = "NetworkIsolated", "Whether all that must be out of reach is; the runner tries it from inside."
    KERNEL_ISOLATED = "KernelIsolated", "Whether it has its own kernel; reported if the template names a RuntimeClass."
    NETWORK_APPLIED = "NetworkApplied", "Whether the network profile of the spec is in force."
    READY = (
        "Ready",
        "Whether it accepts runs, or for a tenant, has its namespace; if False, the reason says why, or what ended it.",
    )
    EXPIRED = "Expired", "Whether its lifetime has ended."
    SUSPENDED = "Suspended", "Whether it is suspended; reported once it has been."
    RESIZED = "Resized", "Whether its requests are its template's; reported if it waited in a pool with lower ones."
    AVAILABLE = "Available", "For a pool: whether a warm sandbox can be claimed."
    PROGRESSING = "Progressing", "For a pool: whether warm sandboxes are being created."
    SCALING_LIMITED = "ScalingLimited", "For a pool with autoscale: whether it wants fewer than its claims ask for."


class Reason(_Explained):
    """Why a condition has its status."""

    POD_PENDING = "PodPending", "The pod has not been created yet."
    SCHEDULED = "Scheduled", "The pod is assigned to a node."
    UNSCHEDULABLE = "Unschedulable", "No node can run the pod."
    QUOTA_EXCEEDED = "QuotaExceeded", "The namespace's quota leaves no room for the pod."
    ADMISSION_REFUSED = "AdmissionRefused", "The API server refused the pod."
    TEMPLATE_NOT_FOUND = "TemplateNotFound", "The SandboxTemplate does not exist."
    PROFILE_NOT_FOUND = "ProfileNotFound", "The template has no network profile of that name."
    IMAGE_PULL_FAILED = "ImagePullFailed", "The image can't be pulled."
    STARTING = "Starting", "The runner is starting."
    START_FAILED = "StartFailed", "The container can't be started."
    START_RETRIED = "StartRetried", "The container runtime failed, so a new pod is tried once."
    READY = "Ready", "The runner accepts runs."
    SUSPENDED = "Suspended", "The sandbox is suspended: it has no pod, and its persistent workspace is kept."
    RESUMED = "Resumed", "The sandbox was resumed: the files of a persistent workspace are kept, processes are gone."
    POD_FAILED = "PodFailed", "The pod has ended."
    OUT_OF_MEMORY = "OutOfMemory", "The kernel killed the sandbox because it ran out of memory."
    EVICTED = "Evicted", "The node evicted the pod."
    NODE_LOST = "NodeLost", "The pod or its node is gone."
    WORKSPACE_LOST = "WorkspaceLost", "The volume of the persistent workspace was deleted, and the files with it."
    PROBE_PENDING = "ProbePending", "The runner has not probed the isolation yet."
    PROBED = "Probed", "The runner probed the isolation from inside and found it intact."
    NETWORK_OPEN = "NetworkOpen", "The runner reached an address that it must not reach."
    OPEN_NETWORK_ALLOWED = (
        "OpenNetworkAllowed",
        "The network is open, which the operator allows: a new pod serves anyway.",
    )
    KERNEL_SHARED = "KernelShared", "The sandbox sees the node's own kernel."
    NODE_UNKNOWN = "NodeUnknown", "The operator may not read nodes."
    APPLIED = "Applied", "The network profile is in force."
    APPLYING = "Applying", "The network profile is being applied."
    PROFILE_REFUSED = "ProfileRefused", "The network profile can't be applied."
    ALIVE = "Alive", "The lifetime has not ended."
    TTL_EXPIRED = "TTLExpired", "The lifetime (ttl) has ended."
    IDLE_TIMEOUT = "IdleTimeout", "The sandbox was idle for its whole idle timeout."
    RESIZED = "Resized", "Its pod has the requests of its template."
    RESIZE_PENDING = "ResizePending", "Its pod's requests have not been raised yet."
    RESIZE_INFEASIBLE = "ResizeInfeasible", "Its pod's requests can't be raised; it works with those that it has."
    POOL_FULL = "PoolFull", "All warm sandboxes are ready."
    POOL_FILLING = "PoolFilling", "Some warm sandboxes are still starting."
    POOL_EMPTY = "PoolEmpty", "No warm sandbox is ready."
    POOL_BLOCKED = "PoolBlocked", "Warm sandboxes can't start; the message says why."
    DESIRED_WITHIN_RANGE = "DesiredWithinRange", "As many warm sandboxes are wanted as the claims ask for."
    TOO_MANY_REPLICAS = "TooManyReplicas", "The claims ask for more warm sandboxes than maxReplicas."
    PROVISIONED = "Provisioned", "For a tenant: its namespace has all that the chart's values give it."
    PROVISIONING_FAILED = "ProvisioningFailed", "For a tenant: its namespace can't be made, or not all that is in it."
    NAMESPACE_TAKEN = "NamespaceTaken", "For a tenant: the namespace that it would have is not its own."
    NAME_TOO_LONG = "NameTooLong", "For a tenant: the name of its namespace would have more than 63 characters."
    TOO_MANY_TENANTS = "TooManyTenants", "For a tenant: as many as there may be were made before."


SENTENCES: Final = {reason: reason.sentence for reason in Reason}
MEANINGS: Final = {kind: kind.sentence for kind in ConditionType}
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
    Reason.WORKSPACE_LOST: "Create another Sandbox; the message has the scheduler's words.",
    Reason.NETWORK_OPEN: "Install or repair a network plugin that enforces NetworkPolicies; if the template's "
    "profile opens the address that the message names, narrow it.",
    Reason.OPEN_NETWORK_ALLOWED: "Set the operator's allow_open_network to false if you don't want that.",
    Reason.KERNEL_SHARED: "Correct the node's handler for the template's RuntimeClass.",
    Reason.NODE_UNKNOWN: "Let the operator read nodes (operator.readNodes in the chart), to verify the kernel.",
    Reason.PROFILE_REFUSED: "The message says why: name another profile, narrow this one in the template, or create "
    "another Sandbox with it if only a running pod can't have it.",
    Reason.TTL_EXPIRED: "Create another Sandbox, with a longer lifetime.ttl if this one was too short.",
    Reason.IDLE_TIMEOUT: "Create another Sandbox, with a longer lifetime.idleTimeout if this one was too short.",
    Reason.RESIZE_PENDING: "Nothing, or make room on its node; the message says if the node lacks it.",
    Reason.RESIZE_INFEASIBLE: "Remove warmRequests from the template, or do what the message asks for.",
    Reason.POOL_EMPTY: "Wait, or raise the pool's replicas.",
    Reason.POOL_BLOCKED: "Do what the reason in the message asks for; the operator tries again.",
    Reason.TOO_MANY_REPLICAS: "Raise the pool's autoscale.maxReplicas if callers find none.",
    Reason.PROVISIONING_FAILED: "Do what the message asks for; the operator tries again.",
    Reason.NAMESPACE_TAKEN: "Give the tenant another name, or remove that namespace; the operator tries again.",
    Reason.NAME_TOO_LONG: "Delete the SandboxTenant, and give the tenant a shorter name.",
    Reason.TOO_MANY_TENANTS: "Delete the SandboxTenant of one that is not used any more, or raise the chart's value "
    "tenantsOnFirstUse.maximum.",
}
"""What to do about a reason; one that is not listed needs nothing done."""


_TYPES = "\n".join(["What is observed.", *(f"{kind}: {meaning}" for kind, meaning in MEANINGS.items())])
_REASONS = "\n".join(["Why, as one word.", *(f"{r}: {r.sentence} {ADVICE.get(r, '')}".rstrip() for r in Reason)])


class Condition(ApiModel):
    """One observed fact, in the form that `kubectl wait` and `kubectl describe` know."""

    type: str = Field(max_length=64, description=_TYPES)
    status: ConditionStatus = Field(description="Whether it is so.")
    reason: str = Field(max_length=64, description=_REASONS)
    message: str = Field("", max_length=1024, description="Why, as a sentence.")
    observed_generation: int = Field(0, ge=0, description="The generation that was observed.")
    last_transition_time: Timestamp | None = Field(None, description="When the status last changed.")


def find(conditions: Sequence[Condition], kind: ConditionType) -> Condition | None:
    """Return the condition of that type, or None."""
    for condition in conditions:  # A generator takes twice as long, and a pool's every event asks all its sandboxes.
        if condition.type == kind:
            return condition
    return None


def is_true(conditions: Sequence[Condition], kind: ConditionType) -> bool:
    """Return whether the condition is there and True."""
    return (found := find(conditions, kind)) is not None and found.status == "True"


def merge(old: Sequence[Condition], new: Sequence[Condition], now: datetime, generation: int) -> list[Condition]:
    """Return the new conditions, with the generation, and the old transition time where the status is the same."""
    since = {(c.type, c.status): c.last_transition_time or now for c in old}
    common = {"observed_generation": generation}
    return [c.model_copy(update=common | {"last_transition_time": since.get((c.type, c.status), now)}) for c in new]
