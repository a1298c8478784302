"""SandboxTemplate: what sandboxes of one kind are made of.

Hardening is not an option: every pod has it, whatever a template says.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from sandpod_api.base import ApiModel, ObservedModel
from sandpod_api.fields import DAY, Name, ObjectMeta, Quantity, Workspace, list_map, rules


class Resources(ApiModel):
    """The most that a sandbox can use."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("quantity(self.cpuRequest).compareTo(quantity(self.cpu)) <= 0", "cpuRequest can't be larger than cpu"),
            (
                "quantity(self.memoryRequest).compareTo(quantity(self.memory)) <= 0",
                "memoryRequest can't be larger than memory",
            ),
        )
    )

    cpu: Annotated[Quantity, Field(description="Cores, as limit.")] = "1"
    cpu_request: Annotated[Quantity, Field(description="Cores that the scheduler sets aside.")] = "50m"
    memory: Annotated[Quantity, Field(description="Memory, as limit, memory-backed workspace included.")] = "512Mi"
    memory_request: Annotated[Quantity, Field(description="Memory that the scheduler sets aside.")] = "128Mi"
    ephemeral_storage: Annotated[Quantity, Field(description="Disk on the node, as limit.")] = "256Mi"


class AppArmorProfile(ApiModel):
    """An AppArmor profile, as in Kubernetes, except for Unconfined. Pods start only on nodes that have it."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "(self.type == 'Localhost') == has(self.localhostProfile)",
                "localhostProfile goes with the type Localhost, and with no other",
            )
        )
    )

    type: Annotated[
        Literal["RuntimeDefault", "Localhost"],
        Field(description="The container runtime's own profile, or one that is loaded on the nodes."),
    ] = "RuntimeDefault"
    localhost_profile: Annotated[
        str | None, Field(min_length=1, max_length=253, description="Name of the loaded profile, for Localhost.")
    ] = None


class EgressRule(ApiModel):
    """Addresses and ports that a network profile opens."""

    cidr: Annotated[str, Field(max_length=64, description="Address range, such as 10.0.0.0/8 or 2001:db8::/32.")]
    except_cidrs: Annotated[
        list[Annotated[str, Field(max_length=64)]], Field(max_length=32, description="Ranges that stay closed.")
    ] = Field(default_factory=list)
    ports: Annotated[
        list[Annotated[int, Field(ge=1, le=65535)]], Field(max_length=32, description="TCP ports; empty means all.")
    ] = Field(default_factory=list)


class NetworkProfile(ApiModel):
    """Egress that a sandbox may ask for by name. Everything that is not listed stays closed.

    The API server, the node and the metadata address must stay closed in every profile: a sandbox that reaches one of
    them is not handed out. Ranges that hold them need an exception.
    """

    name: Annotated[Name, Field(description="The name that a Sandbox's `network` refers to.")]
    egress: Annotated[list[EgressRule], Field(max_length=64, description="What it opens.")] = Field(
        default_factory=list
    )
    dns: Annotated[bool, Field(description="Whether the cluster's DNS answers.")] = False


class Limits(ApiModel):
    """Bounds of single runs."""

    run_timeout: Annotated[int, Field(ge=1, le=DAY, description="Longest time that a run may take, seconds.")] = 3600
    output_bytes: Annotated[int, Field(ge=1024, description="Output of one run, bytes, at which the run is ended.")] = (
        2 * 2**30
    )
    processes: Annotated[int, Field(ge=8, le=32_768, description="Processes and threads at a time.")] = 256
    open_files: Annotated[int, Field(ge=64, le=1_048_576, description="Open files of one process.")] = 1024


class Toleration(ApiModel):
    """A taint that the pods tolerate, as in Kubernetes."""

    key: Annotated[str, Field(max_length=317, description="The taint's key; empty means every taint.")] = ""
    operator: Annotated[Literal["Exists", "Equal"], Field(description="Whether the value counts.")] = "Exists"
    value: Annotated[str, Field(max_length=63, description="The taint's value, for Equal.")] = ""
    effect: Annotated[
        Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"],
        Field(description="The taint's effect; empty means every effect."),
    ] = ""


LANGUAGE_NAME: Final = r"^[a-z][a-z0-9_+#.-]{0,31}$"
_BUILT_IN: Final = ("python", "javascript", "shell")


class TemplateLanguage(ApiModel):
    """A language that a command line runs.

    The runner writes the code to a file, puts its path in the place of {file}, adds the run's own arguments at the end
    and starts that: no shell is between, unless the command is one.
    """

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                f"!(self.name in {list(_BUILT_IN)})",
                "python, javascript and shell are built in: give the language another name",
            ),
            (
                "self.command.exists(w, w.contains('{file}')) && !self.command[0].contains('{file}')",
                "the command is a program, and {file} in one of the words after it",
            ),
        )
    )

    name: Annotated[
        str, Field(pattern=LANGUAGE_NAME, max_length=32, description="The name that callers use, such as ruby.")
    ]
    command: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=256)]],
        Field(
            min_length=2,
            max_length=16,
            description='Program and its arguments, such as ["ruby", "{file}"]. The language is unavailable if the '
            "image does not have that program.",
        ),
    ]
    extension: Annotated[
        str, Field(pattern=r"^(\.[A-Za-z0-9_]{1,15})?$", max_length=16, description="File extension, such as .rb.")
    ] = ""

    @model_validator(mode="after")
    def _ruled(self) -> Self:
        if self.name in _BUILT_IN:
            raise ValueError(f"{self.name} is built in: give the language another name")
        if "{file}" in self.command[0] or not any("{file}" in word for word in self.command):
            raise ValueError("the command is a program, and {file} in one of the words after it")
        return self


ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=128)]


class WorkspaceLimits(ApiModel):
    """The workspaces that callers may ask for instead of the template's own."""

    max_size: Annotated[
        Quantity | None, Field(description="The largest size; absent means the template's own workspace size.")
    ] = None
    persistent: Annotated[
        bool, Field(description="Whether callers may ask for a persistent workspace: each is a volume claim.")
    ] = False


class SandboxTemplateSpec(ApiModel):
    """What sandboxes of one kind are made of. Hardening is not an option: every pod has it."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.networkProfiles) || !self.networkProfiles.exists(p, p.name == 'none')",
                "the network profile none is built in and always closed",
            )
        )
    )

    image: Annotated[str, Field(min_length=1, max_length=512, description="Container image.")]
    runner: Annotated[
        Literal["Image", "Injected"],
        Field(
            description="Image: the image contains Sandpod's runner, as Sandpod's own does. Injected: it does not, and "
            "the operator adds it: any Linux image works."
        ),
    ] = "Image"
    languages: Annotated[
        list[TemplateLanguage],
        Field(
            max_length=16,
            description="Languages in addition to python, javascript and shell, which exist if the image has them.",
            json_schema_extra=list_map("name"),
        ),
    ] = Field(default_factory=list)
    image_pull_policy: Annotated[
        Literal["IfNotPresent", "Always", "Never"], Field(description="When the node pulls the image.")
    ] = "IfNotPresent"
    image_pull_secrets: Annotated[
        list[Name], Field(max_length=8, description="Secrets in the same namespace for a private registry.")
    ] = Field(default_factory=list)
    resources: Annotated[Resources, Field(description="CPU, memory and disk.")] = Resources()
    runtime_class_name: Annotated[Name | None, Field(description="RuntimeClass, such as gvisor.")] = None
    host_users: Annotated[
        bool | None,
        Field(
            description="false: always its own user namespace; true: the node's; absent: its own if every node that "
            "may run it supports that, and a RuntimeClass has the annotation sandpod.dev/user-namespaces: true."
        ),
    ] = None
    app_armor_profile: Annotated[
        AppArmorProfile | None,
        Field(description="AppArmor profile, on nodes that have AppArmor; absent means the node's default."),
    ] = None
    workspace: Annotated[Workspace, Field(description="The folder /workspace.")] = Workspace()
    workspace_limits: Annotated[
        WorkspaceLimits, Field(description="What callers may ask for instead of `workspace`.")
    ] = WorkspaceLimits()
    when_idle: Annotated[
        Literal["Suspend", "End"],
        Field(
            description="What happens to a sandbox with a persistent workspace at its idleTimeout. Suspend: it loses "
            "its pod and keeps its files until its ttl ends or it is used again. End: it is deleted, like every other."
        ),
    ] = "Suspend"
    tmp_size: Annotated[
        Quantity, Field(description="The most that /tmp can hold, added packages too, and /dev/shm; both are memory.")
    ] = "256Mi"
    network_profiles: Annotated[
        list[NetworkProfile],
        Field(
            max_length=16, description="Egress profiles that sandboxes may name.", json_schema_extra=list_map("name")
        ),
    ] = Field(default_factory=list)
    node_selector: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=16, description="Labels of the nodes to use.")
    ] = Field(default_factory=dict)
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
