"""Sandbox, SandboxTemplate and SandboxPool: every field, default, limit and rule, once.

`crd.py` renders the CRDs from these models; operator and gateway parse every object into them at the edge. Defaults
and validation live on the types only, so that the API server refuses a bad object with a sentence of its own.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from sandpod_api.base import ApiModel, ObservedModel, Timestamp
from sandpod_api.conditions import Condition
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
from sandpod_api.names import NETWORK_NONE
from sandpod_api.templates import NetworkProfile, SandboxTemplate

__all__ = ["MAX_LIFETIME", "NetworkProfile", "SandboxTemplate", "TemplateRef", "Workspace", "parse_quantity"]


class Claim(ApiModel):
    """Who holds a sandbox. Writing it is the commit point of a claim; it never changes afterwards."""

    owner: Annotated[str, Field(min_length=1, max_length=256, description="The caller that holds the sandbox.")]
    session: Annotated[str, Field(max_length=256, description="The owner's own name for it; may be empty.")] = ""
    time: Annotated[Timestamp, Field(description="When it was claimed.")]


class Lifetime(ApiModel):
    """How long a claimed sandbox lives."""

    model_config = ConfigDict(
        json_schema_extra=rules(("self.idleTimeout <= self.ttl", "idleTimeout can't be longer than ttl"))
    )

    ttl: Annotated[
        int, Field(ge=1, le=MAX_LIFETIME, description="Seconds from claim to end, whether used, suspended or neither.")
    ] = 4 * 3600
    idle_timeout: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_LIFETIME,
            description="Seconds without use until it ends or, with a persistent workspace, is suspended.",
        ),
    ] = 1800


class SandboxSpec(ApiModel):
    """What is wanted of one sandbox."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(oldSelf.claim) || (has(self.claim) && self.claim == oldSelf.claim)",
                "a claim is written once and never changed",
            ),
            ("self.templateRef == oldSelf.templateRef", "templateRef can't be changed; create another Sandbox"),
            (
                (
                    "has(self.workspace) == has(oldSelf.workspace)"
                    " && (!has(self.workspace) || self.workspace == oldSelf.workspace)"
                ),
                "workspace can't be changed; create another Sandbox",
            ),
        )
    )

    template_ref: Annotated[TemplateRef, Field(description="The template that it is created from.")]
    claim: Annotated[Claim | None, Field(description="Who holds it; absent while it waits in a pool.")] = None
    lifetime: Annotated[Lifetime, Field(description="When it ends.")] = Lifetime()
    network: Annotated[
        Name,
        Field(
            description="Network profile of the template; none means no network. It can be changed while the sandbox "
            "runs: status.network and the condition NetworkApplied report what is in force. It applies to new "
            "connections; whether it ends open ones is up to the cluster's network plugin."
        ),
    ] = NETWORK_NONE
    workspace: Annotated[Workspace | None, Field(description="Its workspace; absent means the template's.")] = None
    operating_mode: Annotated[
        Literal["Running", "Suspended"],
        Field(
            description="Running has a pod; Suspended has none and keeps only a persistent workspace. Idle sandboxes "
            "with one are suspended by the operator, and resumed by the gateway when they are used."
        ),
    ] = "Running"


Phase = Literal["Pending", "Warm", "Ready", "Failed", "Expired", "Suspended"]


class SandboxStatus(ObservedModel):
    """What the operator observed. `phase` summarises the conditions for people."""

    phase: Annotated[Phase | None, Field(description="The conditions in one word.")] = None
    reason: Annotated[str | None, Field(description="Reason of the condition that keeps it from being ready.")] = None
    conditions: Annotated[
        list[Condition], Field(max_length=16, description="What is observed.", json_schema_extra=list_map("type"))
    ] = Field(default_factory=list)
    pod_name: Annotated[str | None, Field(description="Its pod.")] = None
    node_name: Annotated[str | None, Field(description="The node that its pod runs on.")] = None
    image: Annotated[str | None, Field(description="The image that its pod runs.")] = None
    network: Annotated[str | None, Field(description="The network profile that its pod is under.")] = None
    start_time: Annotated[Timestamp | None, Field(description="When its pod became ready.")] = None
    retried_pod: Annotated[
        str | None,
        Field(
            description="Uid of the pod that the container runtime failed to start; after another such one it fails."
        ),
    ] = None
    last_activity_time: Annotated[Timestamp | None, Field(description="When it was last used.")] = None
    expires_at: Annotated[
        Timestamp | None,
        Field(description="When it ends if it is not used before; one that is suspended when idle ends with its ttl."),
    ] = None
    observed_generation: Annotated[int | None, Field(description="The generation that the status is about.")] = None


class Sandbox(ObservedModel):
    """One place to run code: one locked-down pod, for one owner."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SandboxSpec
    status: SandboxStatus = SandboxStatus()


class UpdateStrategy(ApiModel):
    """How warm sandboxes follow a changed template."""

    max_surge: Annotated[int, Field(ge=1, le=100, description="Warm sandboxes that are replaced at a time.")] = 1


class SandboxPoolSpec(ApiModel):
    """How many started sandboxes wait for a claim."""

    template_ref: Annotated[TemplateRef, Field(description="The template that they are created from.")]
    replicas: Annotated[int, Field(ge=0, le=10_000, description="Warm sandboxes to keep.")] = 1
    max_age: Annotated[
        int, Field(ge=60, le=MAX_LIFETIME, description="Seconds after which an unclaimed sandbox is replaced.")
    ] = DAY
    update_strategy: Annotated[UpdateStrategy, Field(description="How a changed template is followed.")] = (
        UpdateStrategy()
    )


class SandboxPoolStatus(ObservedModel):
    """What the operator observed of a pool."""

    replicas: Annotated[int, Field(description="Warm sandboxes that exist.")] = 0
    ready_replicas: Annotated[int, Field(description="Warm sandboxes that can be claimed.")] = 0
    selector: Annotated[str | None, Field(description="Label selector of the warm sandboxes, for autoscalers.")] = None
    reason: Annotated[str | None, Field(description="Why it is not full.")] = None
    conditions: Annotated[
        list[Condition], Field(max_length=8, description="What is observed.", json_schema_extra=list_map("type"))
    ] = Field(default_factory=list)
    observed_generation: Annotated[int | None, Field(description="The generation that the status is about.")] = None


class SandboxPool(ObservedModel):
    """Warm sandboxes of one template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SandboxPoolSpec
    status: SandboxPoolStatus = SandboxPoolStatus()
