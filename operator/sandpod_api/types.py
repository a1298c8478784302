"""Sandbox, SandboxTemplate and SandboxPool: every field, default, limit and rule, once.

`crd.py` renders the CRDs from these models; operator and gateway parse every object into them at the edge. Defaults
and validation live here only, so that the API server refuses a bad object with a sentence of its own.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from sandpod_api.base import ApiModel, ObservedModel, Timestamp
from sandpod_api.conditions import Condition
from sandpod_api.names import NETWORK_NONE

DAY = 86_400
MAX_LIFETIME = 7 * DAY

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
_UNITS = {"m": 1e-3, "": 1, "k": 1e3, "Ki": 2**10, "M": 1e6, "Mi": 2**20, "G": 1e9, "Gi": 2**30, "T": 1e12, "Ti": 2**40}


def parse_quantity(text: str) -> float:
    """Return the number that a Kubernetes quantity stands for: cores or bytes.

    Raises:
        ValueError: The text is no quantity.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(m|k|Ki|M|Mi|G|Gi|T|Ti)?", text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity such as 500m, 1 or 512Mi")
    return float(match[1]) * _UNITS[match[2] or ""]


def _quantity(text: str) -> str:
    parse_quantity(text)
    return text


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """Return the schema extra that makes the API server check CEL expressions and answer with their sentences."""
    return {"x-kubernetes-validations": [{"rule": expression, "message": message} for expression, message in pairs]}


Name = Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
Quantity = Annotated[str, Field(pattern=QUANTITY, max_length=32), AfterValidator(_quantity)]


class ObjectMeta(ObservedModel):
    """The part of Kubernetes' metadata that Sandpod reads."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    owner_references: list[dict[str, Any]] = Field(default_factory=list)


class TemplateRef(ApiModel):
    """The template that a sandbox is made from, in the same namespace."""

    name: Annotated[Name, Field(description="Name of the SandboxTemplate.")]


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

    ttl: Annotated[int, Field(ge=1, le=MAX_LIFETIME, description="Seconds from claim to end, used or not.")] = 4 * 3600
    idle_timeout: Annotated[int, Field(ge=1, le=MAX_LIFETIME, description="Seconds without use to the end.")] = 1800


class Workspace(ApiModel):
    """The folder /workspace of a sandbox."""

    size: Annotated[Quantity, Field(description="The most it can hold.")] = "256Mi"
    medium: Annotated[
        Literal["Memory", "Disk"],
        Field(
            description="Memory: bounded at once, counts against the memory limit. "
            "Disk: larger; the node evicts the pod some time after it passes the size."
        ),
    ] = "Memory"
    persistent: Annotated[bool, Field(description="Whether it outlives the pod, on a volume claim.")] = False


class SandboxSpec(ApiModel):
    """What is wished of one sandbox."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(oldSelf.claim) || (has(self.claim) && self.claim == oldSelf.claim)",
                "a claim is written once and never changed",
            ),
            ("self.templateRef == oldSelf.templateRef", "templateRef can't be changed; create another Sandbox"),
        )
    )

    template_ref: Annotated[TemplateRef, Field(description="The template that it is made from.")]
    claim: Annotated[Claim | None, Field(description="Who holds it; absent while it waits in a pool.")] = None
    lifetime: Annotated[Lifetime, Field(description="When it ends.")] = Lifetime()
    network: Annotated[Name, Field(description="Network profile of the template; none means no network.")] = (
        NETWORK_NONE
    )
    workspace: Annotated[Workspace | None, Field(description="Its workspace; absent means the template's.")] = None
    operating_mode: Annotated[
        Literal["Running", "Suspended"], Field(description="Running has a pod; Suspended has none.")
    ] = "Running"


Phase = Literal["Pending", "Warm", "Ready", "Failed", "Expired", "Suspended"]


class SandboxStatus(ObservedModel):
    """What the operator saw. `phase` is derived from the conditions, for people."""

    phase: Annotated[Phase | None, Field(description="The conditions in one word.")] = None
    reason: Annotated[str | None, Field(description="Reason of the condition that keeps it from being ready.")] = None
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            description="What is observed.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = Field(default_factory=list)
    pod_name: Annotated[str | None, Field(description="Its pod.")] = None
    node_name: Annotated[str | None, Field(description="The node that its pod runs on.")] = None
    image: Annotated[str | None, Field(description="The image that its pod runs.")] = None
    start_time: Annotated[Timestamp | None, Field(description="When its pod became ready.")] = None
    last_activity_time: Annotated[Timestamp | None, Field(description="When it was last used.")] = None
    expires_at: Annotated[Timestamp | None, Field(description="When it ends unless it is used before.")] = None
    observed_generation: Annotated[int | None, Field(description="The generation that the status is about.")] = None


class Sandbox(ObservedModel):
    """One place to run code: one locked-down pod, for one owner."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SandboxSpec
    status: SandboxStatus = SandboxStatus()


class Resources(ApiModel):
    """The most that a sandbox can use."""

    cpu: Annotated[Quantity, Field(description="Cores, as limit.")] = "1"
    cpu_request: Annotated[Quantity, Field(description="Cores that the scheduler sets aside.")] = "50m"
    memory: Annotated[Quantity, Field(description="Memory, as limit, memory-backed workspace included.")] = "512Mi"
    memory_request: Annotated[Quantity, Field(description="Memory that the scheduler sets aside.")] = "128Mi"
    ephemeral_storage: Annotated[Quantity, Field(description="Disk on the node, as limit.")] = "256Mi"


class EgressRule(ApiModel):
    """Addresses and ports that a network profile opens."""

    cidr: Annotated[str, Field(max_length=64, description="Address range, as 10.0.0.0/8 or 2001:db8::/32.")]
    except_cidrs: Annotated[
        list[Annotated[str, Field(max_length=64)]], Field(max_length=32, description="Ranges that stay closed.")
    ] = Field(default_factory=list)
    ports: Annotated[
        list[Annotated[int, Field(ge=1, le=65535)]], Field(max_length=32, description="TCP ports; empty means all.")
    ] = Field(default_factory=list)


class NetworkProfile(ApiModel):
    """Egress that a sandbox may ask for by name. Everything that is not listed stays closed."""

    name: Annotated[Name, Field(description="What a Sandbox's `network` names.")]
    egress: Annotated[list[EgressRule], Field(max_length=64, description="What it opens.")] = Field(
        default_factory=list
    )
    dns: Annotated[bool, Field(description="Whether the cluster's DNS answers.")] = False


class Limits(ApiModel):
    """Bounds of single runs."""

    run_timeout: Annotated[int, Field(ge=1, le=DAY, description="Longest time that a run may ask for, seconds.")] = 3600
    output_bytes: Annotated[int, Field(ge=1024, description="Output of one run at which it is ended.")] = 2 * 2**30
    processes: Annotated[int, Field(ge=8, le=32_768, description="Processes and threads at once.")] = 256
    open_files: Annotated[int, Field(ge=64, le=1_048_576, description="Open files of one process.")] = 1024


class Toleration(ApiModel):
    """A taint that the pods tolerate, as in Kubernetes."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=128)]


class SandboxTemplateSpec(ApiModel):
    """What sandboxes of one kind are made of. Hardening is no option here: every pod has it."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.networkProfiles) || !self.networkProfiles.exists(p, p.name == 'none')",
                "the network profile none is built in and always closed",
            )
        )
    )

    image: Annotated[str, Field(min_length=1, max_length=512, description="Container image, with the runner in it.")]
    image_pull_policy: Annotated[
        Literal["IfNotPresent", "Always", "Never"], Field(description="When the node pulls the image.")
    ] = "IfNotPresent"
    image_pull_secrets: Annotated[
        list[Name], Field(max_length=8, description="Secrets in the same namespace for a private registry.")
    ] = Field(default_factory=list)
    resources: Annotated[Resources, Field(description="CPU, memory and disk.")] = Resources()
    runtime_class_name: Annotated[Name | None, Field(description="RuntimeClass, as gvisor.")] = None
    host_users: Annotated[
        bool | None,
        Field(description="false: own user namespace; absent: the cluster's default. Leave it absent under gVisor."),
    ] = None
    workspace: Annotated[Workspace, Field(description="The folder /workspace.")] = Workspace()
    tmp_size: Annotated[Quantity, Field(description="The most that /tmp can hold; counts as memory.")] = "64Mi"
    network_profiles: Annotated[
        list[NetworkProfile],
        Field(
            max_length=16,
            description="Egress profiles that sandboxes may name.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = Field(default_factory=list)
    node_selector: Annotated[dict[str, str], Field(description="Labels of the nodes to use.")] = Field(
        default_factory=dict
    )
    tolerations: Annotated[list[Toleration], Field(max_length=16, description="Taints to tolerate.")] = Field(
        default_factory=list
    )
    limits: Annotated[Limits, Field(description="Bounds of single runs.")] = Limits()
    preimport: Annotated[
        list[ModuleName], Field(max_length=32, description="Python modules imported before the first run.")
    ] = Field(default_factory=list)


class SandboxTemplate(ObservedModel):
    """A kind of sandbox."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SandboxTemplateSpec


class UpdateStrategy(ApiModel):
    """How warm sandboxes follow a changed template."""

    max_surge: Annotated[int, Field(ge=1, le=100, description="Warm sandboxes that are made anew at once.")] = 1


class SandboxPoolSpec(ApiModel):
    """How many sandboxes wait, started, for a claim."""

    template_ref: Annotated[TemplateRef, Field(description="The template that they are made from.")]
    replicas: Annotated[int, Field(ge=0, le=10_000, description="Warm sandboxes to keep.")] = 1
    max_age: Annotated[
        int, Field(ge=60, le=MAX_LIFETIME, description="Seconds after which an unclaimed one is made anew.")
    ] = DAY
    update_strategy: Annotated[UpdateStrategy, Field(description="How a changed template is followed.")] = (
        UpdateStrategy()
    )


class SandboxPoolStatus(ObservedModel):
    """What the operator saw of a pool."""

    replicas: Annotated[int, Field(description="Warm sandboxes that exist.")] = 0
    ready_replicas: Annotated[int, Field(description="Warm sandboxes that can be claimed.")] = 0
    selector: Annotated[str | None, Field(description="Label selector of the warm sandboxes, for autoscalers.")] = None
    reason: Annotated[str | None, Field(description="Why it is not full.")] = None
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=8,
            description="What is observed.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = Field(default_factory=list)
    observed_generation: Annotated[int | None, Field(description="The generation that the status is about.")] = None


class SandboxPool(ObservedModel):
    """Warm sandboxes of one template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SandboxPoolSpec
    status: SandboxPoolStatus = SandboxPoolStatus()
