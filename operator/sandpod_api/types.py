"""Sandbox, SandboxTemplate, SandboxPool and SandboxTenant: every field, default, limit and rule, once.

`crd.py` renders the CRDs from these models; operator and gateway parse every object into them at the edge.
"""

from typing import Literal

from pydantic import Field

from sandpod_api.base import ApiModel, ObservedModel, Timestamp
from sandpod_api.conditions import Condition, ConditionType, is_true
from sandpod_api.fields import (
    DAY,
    MAX_LIFETIME,
    Name,
    ObjectMeta,
    TemplateRef,
    Workspace,
    list_map,
    parse_quantity,
    rules,
)
from sandpod_api.names import NETWORK_NONE, RUNNER_COMMAND, SHIELDED_COMMAND
from sandpod_api.templates import MAX_SECRETS, NetworkProfile, SandboxTemplate, SecretVariable

__all__ = ["MAX_LIFETIME", "NetworkProfile", "SandboxTemplate", "TemplateRef", "Workspace", "parse_quantity"]


class Claim(ApiModel):
    """Who holds a sandbox. Writing it is the commit point of a claim; it never changes afterwards."""

    owner: str = Field(min_length=1, max_length=256, description="The caller that holds the sandbox.")
    session: str = Field("", max_length=256, description="The owner's own name for it; may be empty.")
    time: Timestamp = Field(description="When it was claimed.")
    secrets: list[SecretVariable] = Field(
        default_factory=list,
        max_length=MAX_SECRETS,
        description="Variables for the owner's programs, from Secrets that name the owner in the annotation "
        "sandpod.dev/users. They reach runs through the gateway, and no pod.",
        json_schema_extra=list_map("name"),
        exclude_if=lambda secrets: not secrets,  # an earlier version refuses a claim with a field that it doesn't know
    )


class Lifetime(ApiModel):
    """How long a claimed sandbox lives."""

    model_config = rules("self.idleTimeout <= self.ttl", "idleTimeout can't be longer than ttl")

    ttl: int = Field(
        4 * 3600, ge=1, le=MAX_LIFETIME, description="Seconds from claim to end, whether used, suspended or neither."
    )
    idle_timeout: int = Field(
        1800,
        ge=1,
        le=MAX_LIFETIME,
        description="Seconds without use until it ends or, with a persistent workspace, is suspended.",
    )


class SandboxSpec(ApiModel):
    """What is wanted of one sandbox."""

    model_config = rules(
        "!has(oldSelf.claim) || (has(self.claim) && self.claim == oldSelf.claim)",
        "a claim is written once and never changed",
        "self.templateRef == oldSelf.templateRef",
        "templateRef can't be changed; create another Sandbox",
        (
            "has(self.workspace) == has(oldSelf.workspace)"
            " && (!has(self.workspace) || self.workspace == oldSelf.workspace)"
        ),
        "workspace can't be changed; create another Sandbox",
    )

    template_ref: TemplateRef = Field(description="The template that it is created from.")
    claim: Claim | None = Field(None, description="Who holds it; absent while it waits in a pool.")
    lifetime: Lifetime = Field(Lifetime(), description="When it ends.")
    network: Name = Field(
        NETWORK_NONE,
        description="Network profile of the template; none means no network. It can be changed while the sandbox "
        "runs: status.network and the condition NetworkApplied report what is in force. It applies to new "
        "connections; whether it ends open ones is up to the cluster's network plugin.",
    )
    workspace: Workspace | None = Field(None, description="Its workspace; absent means the template's.")
    operating_mode: Literal["Running", "Suspended"] = Field(
        "Running",
        description="Running has a pod; Suspended has none and keeps only a persistent workspace. Idle sandboxes "
        "with one are suspended by the operator, and resumed by the gateway when they are used.",
    )


Phase = Literal["Pending", "Warm", "Ready", "Failed", "Expired", "Suspended"]


class SandboxStatus(ObservedModel):
    """What the operator observed. `phase` summarises the conditions for people."""

    phase: Phase | None = Field(None, description="The conditions in one word.")
    reason: str | None = Field(None, description="Reason of the condition that keeps it from being ready.")
    conditions: list[Condition] = Field(
        default_factory=list, max_length=16, description="What is observed.", json_schema_extra=list_map("type")
    )
    pod_name: str | None = Field(None, description="Its pod.")
    node_name: str | None = Field(None, description="The node that its pod runs on.")
    image: str | None = Field(None, description="The image that its pod runs.")
    network: str | None = Field(None, description="The network profile that its pod is under.")
    start_time: Timestamp | None = Field(None, description="When its pod became ready.")
    retried_pod: str | None = Field(
        None, description="Uid of the pod that the container runtime failed to start; after another such one it fails."
    )
    volume_claim: str | None = Field(
        None, description="The volume claim that holds its files, once it has been ready. Without it they are lost."
    )
    last_activity_time: Timestamp | None = Field(None, description="When it was last used.")
    expires_at: Timestamp | None = Field(
        None, description="When it ends if it is not used before; one that is suspended when idle ends with its ttl."
    )
    observed_generation: int | None = Field(None, description="The generation that the status is about.")


class Sandbox(ObservedModel):
    """One place to run code: one locked-down pod, for one owner."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SandboxSpec
    status: SandboxStatus = SandboxStatus()


def exec_command(sandbox: Sandbox | None) -> tuple[str, ...]:
    """Return the interpreter and module to run in the pod to reach the sandbox's runner by exec.

    gVisor can't start a program that its user may not read, so a sandbox with a kernel of its own gets the readable
    interpreter: programs there are apart from the node, and from each other as that kernel keeps them. One that is not
    known counts as one on the node's kernel.
    """
    apart = sandbox is not None and is_true(sandbox.status.conditions, ConditionType.KERNEL_ISOLATED)
    return RUNNER_COMMAND if apart else SHIELDED_COMMAND


class UpdateStrategy(ApiModel):
    """How warm sandboxes follow a changed template."""

    max_surge: int = Field(1, ge=1, le=100, description="Warm sandboxes that are replaced at a time.")


class Autoscale(ApiModel):
    """Between which numbers a pool follows its claims."""

    model_config = rules("self.minReplicas <= self.maxReplicas", "minReplicas can't be larger than maxReplicas")

    min_replicas: int = Field(1, ge=0, le=10_000, description="Warm sandboxes while nothing is claimed.")
    max_replicas: int = Field(ge=1, le=10_000, description="The most warm sandboxes.")


class SandboxPoolSpec(ApiModel):
    """How many started sandboxes wait for a claim."""

    model_config = rules(
        "!has(self.autoscale) || !has(oldSelf.autoscale) || self.replicas == oldSelf.replicas",
        "replicas is not used with autoscale: change autoscale.minReplicas, or remove autoscale first",
    )

    template_ref: TemplateRef = Field(description="The template that they are created from.")
    replicas: int = Field(1, ge=0, le=10_000, description="Warm sandboxes to keep; not used with autoscale.")
    autoscale: Autoscale | None = Field(
        None,
        description="Keep as many warm as the rate of claims asks for: those that are claimed while new ones start, "
        "twice that as a margin, and minReplicas on top. Without it there are `replicas`.",
    )
    max_age: int = Field(
        DAY, ge=60, le=MAX_LIFETIME, description="Seconds after which an unclaimed sandbox is replaced."
    )
    update_strategy: UpdateStrategy = Field(UpdateStrategy(), description="How a changed template is followed.")


class PoolClaims(ObservedModel):
    """How often claims found a warm sandbox. What was claimed while no operator ran is not counted."""

    warm: int = Field(0, description="Claims that took a warm sandbox of the pool.")
    cold: int = Field(
        0,
        description="Claims that found none, and had a sandbox made that became ready; those that were refused instead "
        "are not counted.",
    )
    since: Timestamp | None = Field(None, description="When counting began.")


class SandboxPoolStatus(ObservedModel):
    """What the operator observed of a pool."""

    replicas: int = Field(0, description="Warm sandboxes that exist.")
    ready_replicas: int = Field(0, description="Warm sandboxes that can be claimed.")
    desired_replicas: int | None = Field(None, description="Warm sandboxes that it should have now.")
    claims_per_second: float | None = Field(
        None,
        description="With autoscale: the rate of claims that it is sized for. It rises within seconds, and halves in "
        "two minutes.",
    )
    start_seconds: float | None = Field(
        None, description="With autoscale: seconds from the creation of a sandbox until it can be claimed."
    )
    claims: PoolClaims = Field(PoolClaims(), description="How often claims found a warm sandbox.")
    selector: str | None = Field(None, description="Label selector of the warm sandboxes, for autoscalers.")
    reason: str | None = Field(None, description="Why it is not full.")
    conditions: list[Condition] = Field(
        default_factory=list, max_length=8, description="What is observed.", json_schema_extra=list_map("type")
    )
    observed_generation: int | None = Field(None, description="The generation that the status is about.")


class SandboxPool(ObservedModel):
    """Warm sandboxes of one template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SandboxPoolSpec
    status: SandboxPoolStatus = SandboxPoolStatus()


class SandboxTenantSpec(ApiModel):
    """Nothing: what a tenant gets is the administrator's to say, in the chart's values."""


class SandboxTenantStatus(ObservedModel):
    """What the operator observed of a tenant."""

    namespace: str | None = Field(None, description="The namespace of its sandboxes, once it has all that it gets.")
    revision: str | None = Field(None, description="Which version of what tenants get it has.")
    conditions: list[Condition] = Field(
        default_factory=list, max_length=8, description="What is observed.", json_schema_extra=list_map("type")
    )


class SandboxTenant(ObservedModel):
    """A tenant that was made on first use; its name is the tenant's. Deleting it does not delete its namespace."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SandboxTenantSpec = SandboxTenantSpec()
    status: SandboxTenantStatus = SandboxTenantStatus()
