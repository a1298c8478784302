"""The part of a pod that Sandpod reads, without the nesting. Every pod is parsed into this at the edge."""

from typing import Any, Final

from pydantic import AliasPath, Field, TypeAdapter

from sandpod_api.base import ObservedModel, Timestamp
from sandpod_api.fields import ObjectMeta, Quantity
from sandpod_api.names import ANNOTATION_CLAIMED_REQUESTS, CONTAINER, KERNEL_CONTAINER, LABEL_NETWORK, NETWORK_NONE

_Requests: Final = TypeAdapter(dict[str, Quantity])


class StateDetail(ObservedModel):
    """Why a container does not run yet, or how it ended: the message of an end comes from inside, untrusted."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerStatus(ObservedModel):
    """What the kubelet reports about a container."""

    name: str = ""
    started: bool | None = None
    waiting: StateDetail | None = Field(None, validation_alias=AliasPath("state", "waiting"))
    terminated: StateDetail | None = Field(None, validation_alias=AliasPath("state", "terminated"))


class PodCondition(ObservedModel):
    """One of a pod's own conditions."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: Timestamp | None = None


class PodContainer(ObservedModel):
    """A container as specified."""

    name: str = ""
    image: str | None = None
    env: list[dict[str, Any]] = Field(default_factory=list)
    requests: dict[str, str] = Field(default_factory=dict, validation_alias=AliasPath("resources", "requests"))


class Pod(ObservedModel):
    """A sandbox's pod: what was asked for, and what scheduler and kubelet report."""

    metadata: ObjectMeta = ObjectMeta()
    node_name: str | None = Field(None, validation_alias=AliasPath("spec", "nodeName"))
    dns_policy: str = Field("", validation_alias=AliasPath("spec", "dnsPolicy"))
    containers: list[PodContainer] = Field(default_factory=list, validation_alias=AliasPath("spec", "containers"))
    phase: str = Field("", validation_alias=AliasPath("status", "phase"))
    reason: str = Field("", validation_alias=AliasPath("status", "reason"))
    message: str = Field("", validation_alias=AliasPath("status", "message"))
    host_ip: str = Field("", validation_alias=AliasPath("status", "hostIP"))
    conditions: list[PodCondition] = Field(default_factory=list, validation_alias=AliasPath("status", "conditions"))
    container_statuses: list[ContainerStatus] = Field([], validation_alias=AliasPath("status", "containerStatuses"))
    init_statuses: list[ContainerStatus] = Field([], validation_alias=AliasPath("status", "initContainerStatuses"))

    @property
    def container_status(self) -> ContainerStatus:
        """What the kubelet reports about the sandbox's container; nothing at first."""
        return next((c for c in self.container_statuses if c.name == CONTAINER), ContainerStatus())

    @property
    def terminated(self) -> StateDetail | None:
        """How the container ended, if it did."""
        return self.container_status.terminated

    @property
    def failed_init(self) -> tuple[str, StateDetail] | None:
        """The name of an init container that failed and how, if one did: the sandbox's own never starts then."""
        ends = ((status.name, status.terminated) for status in self.init_statuses)
        return next(((name, end) for name, end in ends if end is not None and end.exit_code != 0), None)

    @property
    def kernel(self) -> str:
        """What the sandbox reports about the kernel that it sees, unparsed; empty until then."""
        ends = (status.terminated for status in self.init_statuses if status.name == KERNEL_CONTAINER)
        return next((end.message for end in ends if end is not None and end.exit_code == 0), "")

    @property
    def waiting(self) -> StateDetail | None:
        """Why the container does not run yet, if it waits; where an init container waits, why that does."""
        states = [status.waiting for status in (*self.init_statuses, self.container_status)]
        return next((waiting for waiting in states if waiting is not None), None)

    @property
    def network(self) -> str:
        """The network profile that it is under."""
        return self.metadata.labels.get(LABEL_NETWORK, NETWORK_NONE)

    @property
    def claimed_requests(self) -> dict[str, str]:
        """The requests that it gets once its sandbox is claimed; empty where they are the same from the start."""
        try:
            return _Requests.validate_json(self.metadata.annotations.get(ANNOTATION_CLAIMED_REQUESTS, "{}"))
        except ValueError:
            return {}  # written by someone else

    @property
    def container_spec(self) -> PodContainer:
        """The sandbox's container as specified."""
        return next((c for c in self.containers if c.name == CONTAINER), PodContainer())

    @property
    def ended(self) -> bool:
        """Whether it has ended, however; it never starts again."""
        return self.phase in {"Succeeded", "Failed"} or self.terminated is not None

    @property
    def deleting(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def started(self) -> bool:
        """Whether its startup probe has passed: the runner has probed its isolation and takes runs."""
        return self.container_status.started is True and self.terminated is None

    @property
    def ready(self) -> bool:
        """Whether it accepts runs now, and its node is reachable.

        The kubelet reports at once that a startup probe has passed, and up to a second later that containers and pod
        are ready, which without a readiness probe says nothing more. A container that an admission webhook has added
        may never be. A node that is given up has ready containers in a pod that is not:
        https://kubernetes.io/docs/concepts/architecture/nodes/#node-status.
        """
        if not self.started or self.ended:
            return False
        return self.is_true("Ready") or not self.is_true("ContainersReady")

    def condition(self, kind: str) -> PodCondition | None:
        """Return the pod's condition of that type, or None."""
        return next((c for c in self.conditions if c.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Return whether the pod's condition of that type is there and True."""
        return (found := self.condition(kind)) is not None and found.status == "True"

    def variable(self, name: str) -> str:
        """Return a variable of the sandbox's container, empty where it has none of that name."""
        return next((str(each.get("value") or "") for each in self.container_spec.env if each.get("name") == name), "")
