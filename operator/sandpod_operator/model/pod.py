"""The part of a pod that Sandpod reads. Every pod is parsed into this at the edge."""

from collections.abc import Iterator
from datetime import datetime

from pydantic import Field

from sandpod_api.base import ObservedModel, Timestamp
from sandpod_api.fields import ObjectMeta
from sandpod_api.names import CONTAINER, KERNEL_CONTAINER, LABEL_NETWORK, NETWORK_NONE


class StateDetail(ObservedModel):
    """Why a container does not run yet, or how it ended: the message of an end comes from inside, untrusted."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(ObservedModel):
    """At most one of these is set."""

    waiting: StateDetail | None = None
    terminated: StateDetail | None = None


class ContainerStatus(ObservedModel):
    """What the kubelet reports about a container."""

    name: str = ""
    ready: bool = False
    started: bool | None = None
    state: ContainerState = ContainerState()


class PodCondition(ObservedModel):
    """One of a pod's own conditions."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: Timestamp | None = None


class PodStatus(ObservedModel):
    """What scheduler and kubelet report."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    host_ip: str = Field("", alias="hostIP")
    conditions: list[PodCondition] = Field(default_factory=list)
    container_statuses: list[ContainerStatus] = Field(default_factory=list)
    init_container_statuses: list[ContainerStatus] = Field(default_factory=list)


class Variable(ObservedModel):
    """A variable of a container's environment; one from elsewhere has no value here."""

    name: str = ""
    value: str = ""


class PodContainer(ObservedModel):
    """A container as specified."""

    name: str = ""
    image: str | None = None
    env: list[Variable] = Field(default_factory=list)


class PodSpec(ObservedModel):
    """Where it runs, and what."""

    node_name: str | None = None
    dns_policy: str = ""
    containers: list[PodContainer] = Field(default_factory=list)


class Pod(ObservedModel):
    """A sandbox's pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def container(self) -> ContainerStatus:
        """What the kubelet reports about the sandbox's container; nothing at first."""
        return next((c for c in self.status.container_statuses if c.name == CONTAINER), ContainerStatus())

    @property
    def terminated(self) -> StateDetail | None:
        """How the container ended, if it did."""
        return self.container.state.terminated

    def _init_ends(self) -> Iterator[tuple[str, StateDetail]]:
        """Return the names and ends of those init containers that have ended."""
        for status in self.status.init_container_statuses:
            if status.state.terminated is not None:
                yield status.name, status.state.terminated

    @property
    def not_prepared(self) -> StateDetail | None:
        """How an init container failed, if one did: the sandbox's own never starts then."""
        return next((end for _, end in self._init_ends() if end.exit_code != 0), None)

    @property
    def kernel(self) -> str:
        """What the sandbox reports about the kernel that it sees, unparsed; empty until then."""
        ends = (end for name, end in self._init_ends() if name == KERNEL_CONTAINER and end.exit_code == 0)
        return next((end.message for end in ends), "")

    @property
    def waiting(self) -> StateDetail | None:
        """Why the container does not run yet, if it waits; where an init container waits, why that does."""
        states = [status.state.waiting for status in (*self.status.init_container_statuses, self.container)]
        return next((waiting for waiting in states if waiting is not None), None)

    @property
    def network(self) -> str:
        """The network profile that it is under."""
        return self.metadata.labels.get(LABEL_NETWORK, NETWORK_NONE)

    @property
    def asked(self) -> PodContainer:
        """The sandbox's container as specified."""
        return next((c for c in self.spec.containers if c.name == CONTAINER), PodContainer())

    @property
    def ended(self) -> bool:
        """Whether it has ended, however; it never starts again."""
        return self.status.phase in {"Succeeded", "Failed"} or self.terminated is not None

    @property
    def deleting(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def started(self) -> bool:
        """Whether its startup probe has passed: the runner has probed its isolation and takes runs."""
        return self.container.started is True and self.terminated is None

    @property
    def ready(self) -> bool:
        """Whether it accepts runs now, and its node is reachable.

        The kubelet reports at once that a startup probe has passed, and up to a second later that container and pod are
        ready, which without a readiness probe says nothing more. A node that is given up has a ready container in a
        pod that is not: https://kubernetes.io/docs/concepts/architecture/nodes/#node-status.
        """
        if not self.started or self.ended:
            return False
        return not self.container.ready or self.is_true("Ready")

    def condition(self, kind: str) -> PodCondition | None:
        """Return the pod's condition of that type, or None."""
        return next((c for c in self.status.conditions if c.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Return whether the pod's condition of that type is there and True."""
        return (found := self.condition(kind)) is not None and found.status == "True"

    def variable(self, name: str) -> str:
        """Return a variable of the sandbox's container, empty where it has none of that name."""
        return next((v.value for v in self.asked.env if v.name == name), "")

    def ready_since(self) -> datetime | None:
        """Return when it became ready."""
        ready = self.condition("Ready")
        return ready.last_transition_time if ready is not None and ready.status == "True" else None
