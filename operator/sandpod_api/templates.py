"""SandboxTemplate: what sandboxes of one kind are made of.

Hardening is not an option: every pod has it, whatever a template says.
"""

import re
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from sandpod_api.base import ApiModel, ObservedModel
from sandpod_api.fields import DAY, Name, ObjectMeta, Quantity, Workspace, list_map, rules


class Resources(ApiModel):
    """The most that a sandbox can use."""

    model_config = rules(
        "quantity(self.cpuRequest).compareTo(quantity(self.cpu)) <= 0",
        "cpuRequest can't be larger than cpu",
        "quantity(self.memoryRequest).compareTo(quantity(self.memory)) <= 0",
        "memoryRequest can't be larger than memory",
    )

    cpu: Quantity = Field("1", description="Cores, as limit.")
    cpu_request: Quantity = Field("50m", description="Cores that the scheduler sets aside.")
    memory: Quantity = Field("512Mi", description="Memory, as limit, memory-backed workspace included.")
    memory_request: Quantity = Field("128Mi", description="Memory that the scheduler sets aside.")
    ephemeral_storage: Quantity = Field("256Mi", description="Disk on the node, as limit.")


class WarmRequests(ApiModel):
    """What the scheduler sets aside for a sandbox that waits in a pool."""

    cpu: Quantity | None = Field(None, description="Cores; absent means resources.cpuRequest.")
    memory: Quantity | None = Field(None, description="Memory; absent means resources.memoryRequest.")


class AppArmorProfile(ApiModel):
    """An AppArmor profile, as in Kubernetes, except for Unconfined. Pods start only on nodes that have it."""

    model_config = rules(
        "(self.type == 'Localhost') == has(self.localhostProfile)",
        "localhostProfile goes with the type Localhost, and with no other",
    )

    type: Literal["RuntimeDefault", "Localhost"] = Field(
        "RuntimeDefault", description="The container runtime's own profile, or one that is loaded on the nodes."
    )
    localhost_profile: str | None = Field(
        None, min_length=1, max_length=253, description="Name of the loaded profile, for Localhost."
    )


class EgressRule(ApiModel):
    """Addresses and ports that a network profile opens."""

    cidr: str = Field(max_length=64, description="Address range, such as 10.0.0.0/8 or 2001:db8::/32.")
    except_cidrs: list[Annotated[str, Field(max_length=64)]] = Field(
        default_factory=list, max_length=32, description="Ranges that stay closed."
    )
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(
        default_factory=list, max_length=32, description="TCP ports; empty means all."
    )


class NetworkProfile(ApiModel):
    """Egress that a sandbox may ask for by name. Everything that is not listed stays closed.

    The API server, the node and the metadata address must stay closed in every profile: a sandbox that reaches one of
    them is not handed out. Ranges that hold them need an exception.
    """

    name: Name = Field(description="The name that a Sandbox's `network` refers to.")
    egress: list[EgressRule] = Field(default_factory=list, max_length=64, description="What it opens.")
    dns: bool = Field(False, description="Whether the cluster's DNS answers.")


class Limits(ApiModel):
    """Bounds of single runs."""

    run_timeout: int = Field(3600, ge=1, le=DAY, description="Longest time that a run may take, seconds.")
    output_bytes: int = Field(2 * 2**30, ge=1024, description="Output of one run, bytes, at which the run is ended.")
    processes: int = Field(256, ge=8, le=32_768, description="Processes and threads at a time.")
    open_files: int = Field(1024, ge=64, le=1_048_576, description="Open files of one process.")


class Toleration(ApiModel):
    """A taint that the pods tolerate, as in Kubernetes."""

    key: str = Field("", max_length=317, description="The taint's key; empty means every taint.")
    operator: Literal["Exists", "Equal"] = Field("Exists", description="Whether the value counts.")
    value: str = Field("", max_length=63, description="The taint's value, for Equal.")
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(
        "", description="The taint's effect; empty means every effect."
    )


LANGUAGE_NAME: Final = r"^[a-z][a-z0-9_+#.-]{0,31}$"
_BUILT_IN: Final = ("python", "javascript", "shell")


class TemplateLanguage(ApiModel):
    """A language that a command line runs.

    The runner writes the code to a file, puts its path in the place of {file}, adds the run's own arguments at the end
    and starts that: no shell is between, unless the command is one.
    """

    model_config = rules(
        f"!(self.name in {list(_BUILT_IN)})",
        "python, javascript and shell are built in: give the language another name",
        "self.command.exists(w, w.contains('{file}')) && !self.command[0].contains('{file}')",
        "the command is a program, and {file} in one of the words after it",
    )

    name: str = Field(pattern=LANGUAGE_NAME, max_length=32, description="The name that callers use, such as ruby.")
    command: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        min_length=2,
        max_length=16,
        description='Program and its arguments, such as ["ruby", "{file}"]. The language is unavailable if the '
        "image does not have that program.",
    )
    extension: str = Field(
        "", pattern=r"^(\.[A-Za-z0-9_]{1,15})?$", max_length=16, description="File extension, such as .rb."
    )

    @model_validator(mode="after")
    def _ruled(self) -> Self:
        if self.name in _BUILT_IN:
            raise ValueError(f"{self.name} is built in: give the language another name")
        if "{file}" in self.command[0] or not any("{file}" in word for word in self.command):
            raise ValueError("the command is a program, and {file} in one of the words after it")
        return self


SecretObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", max_length=253)]
SecretKey = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]
SECRET_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
MAX_SECRETS: Final = 32  # of one sandbox
_RESERVED: Final = ("PATH", "HOME", "IFS", "ENV", "BASH_ENV", "NODE_OPTIONS")
_RESERVED_BEGINNINGS: Final = ("LD_", "SANDPOD_", "PYTHON")


def is_reserved(name: str) -> bool:
    """Return whether a secret can't have the name: the runner, or the start of every program, depends on it."""
    return name in _RESERVED or name.startswith(_RESERVED_BEGINNINGS)


class SecretKeyRef(ApiModel):
    """A key of a Secret in the same namespace."""

    name: SecretObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(description="Its key.")


class SecretVariable(ApiModel):
    """An environment variable for programs whose value is in a Secret and is masked in what callers get.

    The gateway gives it to each run in scope. Neither a pod nor a Sandbox has it in its resource.
    """

    model_config = rules(
        f"!(self.name in {list(_RESERVED)}) && !{list(_RESERVED_BEGINNINGS)}.exists(b, self.name.startsWith(b))",
        "the name is reserved: give the secret another one",
    )

    name: str = Field(pattern=f"^{SECRET_NAME.pattern}$", max_length=128, description="Name of the variable.")
    secret_key_ref: SecretKeyRef = Field(description="Where its value is.")
    tools: list[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$", max_length=64)]] = Field(
        default_factory=list, max_length=16, description="Tools whose runs get it; empty means all."
    )
    languages: list[Annotated[str, Field(pattern=LANGUAGE_NAME, max_length=32)]] = Field(
        default_factory=list, max_length=16, description="Languages of runs that get it; empty means all."
    )

    @model_validator(mode="after")
    def _ruled(self) -> Self:
        if is_reserved(self.name):
            raise ValueError("the name is reserved: give the secret another one")
        return self


ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=128)]


class WorkspaceLimits(ApiModel):
    """The workspaces that callers may ask for instead of the template's own."""

    max_size: Quantity | None = Field(
        None, description="The largest size; absent means the template's own workspace size."
    )
    persistent: bool = Field(
        False, description="Whether callers may ask for a persistent workspace: each is a volume claim."
    )


class SandboxTemplateSpec(ApiModel):
    """What sandboxes of one kind are made of. Hardening is not an option: every pod has it."""

    model_config = rules(
        "!has(self.networkProfiles) || !self.networkProfiles.exists(p, p.name == 'none')",
        "the network profile none is built in and always closed",
        "!has(self.warmRequests) || !has(self.warmRequests.cpu)"
        " || quantity(self.warmRequests.cpu).compareTo(quantity(self.resources.cpuRequest)) <= 0",
        "warmRequests.cpu can't be larger than resources.cpuRequest",
        "!has(self.warmRequests) || !has(self.warmRequests.memory)"
        " || quantity(self.warmRequests.memory).compareTo(quantity(self.resources.memoryRequest)) <= 0",
        "warmRequests.memory can't be larger than resources.memoryRequest",
        "!has(self.warmRequests) || quantity(self.resources.cpuRequest).compareTo(quantity(self.resources.cpu)) < 0"
        " || quantity(self.resources.memoryRequest).compareTo(quantity(self.resources.memory)) < 0",
        "warmRequests needs cpuRequest or memoryRequest below its limit: no pod becomes Guaranteed later",
    )

    image: str = Field(min_length=1, max_length=512, description="Container image.")
    runner: Literal["Image", "Injected"] = Field(
        "Image",
        description="Image: the image contains Sandpod's runner, as Sandpod's own does. Injected: it does not, and "
        "the operator adds it: any Linux image works.",
    )
    languages: list[TemplateLanguage] = Field(
        default_factory=list,
        max_length=16,
        description="Languages in addition to python, javascript and shell, which exist if the image has them.",
        json_schema_extra=list_map("name"),
    )
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        "IfNotPresent", description="When the node pulls the image."
    )
    image_pull_secrets: list[Name] = Field(
        default_factory=list, max_length=8, description="Secrets in the same namespace for a private registry."
    )
    resources: Resources = Field(Resources(), description="CPU, memory and disk.")
    warm_requests: WarmRequests | None = Field(
        None,
        description="Lower requests of sandboxes that wait in a pool: more of them fit on the nodes and into the "
        "quota. At the claim they are raised to those of `resources` in place, if Kubernetes can (1.33 or later); the "
        "condition Resized says so. The limits are the same all the time.",
    )
    runtime_class_name: Name | None = Field(None, description="RuntimeClass, such as gvisor.")
    host_users: bool | None = Field(
        None,
        description="false: always its own user namespace; true: the node's; absent: its own if every node that "
        "may run it supports that, and a RuntimeClass has the annotation sandpod.dev/user-namespaces: true.",
    )
    app_armor_profile: AppArmorProfile | None = Field(
        None, description="AppArmor profile, on nodes that have AppArmor; absent means the node's default."
    )
    workspace: Workspace = Field(Workspace(), description="The folder /workspace.")
    workspace_limits: WorkspaceLimits = Field(
        WorkspaceLimits(), description="What callers may ask for instead of `workspace`."
    )
    when_idle: Literal["Suspend", "End"] = Field(
        "Suspend",
        description="What happens to a sandbox with a persistent workspace at its idleTimeout. Suspend: it loses "
        "its pod and keeps its files until its ttl ends or it is used again. End: it is deleted, like every other.",
    )
    tmp_size: Quantity = Field("256Mi", description="The most that /tmp can hold, and /dev/shm; both are memory.")
    packages_size: Quantity = Field(
        "1Gi",
        description="The most that added packages take, on the node's disk. The pod's limit of ephemeral storage is "
        "larger by this, its request is not.",
    )
    network_profiles: list[NetworkProfile] = Field(
        default_factory=list,
        max_length=16,
        description="Egress profiles that sandboxes may name.",
        json_schema_extra=list_map("name"),
    )
    node_selector: dict[str, Annotated[str, Field(max_length=63)]] = Field(
        default_factory=dict, max_length=16, description="Labels of the nodes to use."
    )
    tolerations: list[Toleration] = Field(default_factory=list, max_length=16, description="Taints to tolerate.")
    limits: Limits = Field(Limits(), description="Bounds of single runs.")
    preimport: list[ModuleName] = Field(
        default_factory=list, max_length=32, description="Python modules imported before the first run."
    )
    secrets: list[SecretVariable] = Field(
        default_factory=list,
        max_length=MAX_SECRETS,
        description="Variables for programs whose values are in Secrets. They reach runs through the gateway, and no "
        "pod: a change holds for new runs within a minute, in sandboxes that exist too.",
        json_schema_extra=list_map("name"),
    )


class SandboxTemplate(ObservedModel):
    """A kind of sandbox."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SandboxTemplateSpec
