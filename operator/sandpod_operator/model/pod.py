"""The part of a pod that Sandpod reads. Every pod is parsed into this at the edge."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from sandpod_api.base import ObservedModel, Timestamp
from sandpod_api.fields import ObjectMeta
from sandpod_api.names import CONTAINER, KERNEL_CONTAINER, LABEL_NETWORK, NETWORK_NONE


class Waiting(ObservedModel):
    """A container that does not run yet."""

    reason: str = ""
    message: str = ""


class Terminated(ObservedModel):
    """A container that has ended. `message` comes from inside: untrusted."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(ObservedModel):
    """At most one of these is set."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(ObservedModel):
    """What the kubelet says of a container."""

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
    """What scheduler and kubelet say."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    host_ip: Annotated[str, Field(alias="hostIP")] = ""
    conditions: list[PodCondition] = Field(default_factory=list)
    container_statuses: list[ContainerStatus] = Field(default_factory=list)
    init_container_statuses: list[ContainerStatus] = Field(default_factory=list)


class Variable(ObservedModel):
    """A variable of a container's environment; one from elsewhere has no value here."""

    name: str = ""
    value: str = ""


class PodContainer(ObservedModel):
    """A container as it was asked for."""

    name: str = ""
    image: str = ""
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
    def container(self) -> ContainerStatus | None:
        """What the kubelet says of the sandbox's container, once it says anything."""
        return next((c for c in self.status.container_statuses if c.name == CONTAINER), None)

    @property
    def terminated(self) -> Terminated | None:
        """How the container ended, if it did."""
        return self.container.state.terminated if self.container else None

    @property
    def not_prepared(self) -> Terminated | None:
        """How a container before it failed, if one did: it never starts then."""
        ends = (status.state.terminated for status in self.status.init_container_statuses)
        return next((end for end in ends if end is not None and end.exit_code != 0), None)

    @property
    def kernel(self) -> str:
        """What the sandbox says of the kernel that it sees, as it came; empty while it has said nothing."""
        statuses = (s for s in self.status.init_container_statuses if s.name == KERNEL_CONTAINER)
        ends = (status.state.terminated for status in statuses)
        return next((end.message for end in ends if end is not None and end.exit_code == 0), "")

    @property
    def waiting(self) -> Waiting | None:
        """Why the container does not run yet, if it waits; where one before it waits itself, why that does."""
        statuses = [*self.status.init_container_statuses, *filter(None, [self.container])]
        waits = [status.state.waiting for status in statuses if status.state.waiting is not None]
        return waits[0] if waits else None

    @property
    def network(self) -> str:
        """The network profile that it is under."""
        return self.metadata.labels.get(LABEL_NETWORK, NETWORK_NONE)

    @property
    def resolves_names(self) -> bool:
        """Whether it was made to ask the cluster's DNS."""
        return self.spec.dns_policy != "None"

    @property
    def image(self) -> str | None:
        """The image that was asked for."""
        return next((c.image for c in self.spec.containers if c.name == CONTAINER), None)

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
        return self.container is not None and self.container.started is True and self.terminated is None

    @property
    def ready(self) -> bool:
        """Whether it accepts runs now, and its node is reachable.

        The kubelet reports at once that a startup probe has passed, and up to a second later that container and pod are
        ready, which without a readiness probe says nothing more. A node that is given up has a ready container in a
        pod that is not: https://kubernetes.io/docs/concepts/architecture/nodes/#node-status.
        """
        if not self.started or self.ended:
            return False
        ready = self.condition("Ready")
        reported = self.container is not None and self.container.ready
        return not reported or (ready is not None and ready.status == "True")

    def condition(self, kind: str) -> PodCondition | None:
        """Return the pod's condition of that type, or None."""
        return next((c for c in self.status.conditions if c.type == kind), None)

    def variable(self, name: str) -> str:
        """Return a variable of the sandbox's container, empty where it has none of that name."""
        container = next((c for c in self.spec.containers if c.name == CONTAINER), PodContainer())
        return next((v.value for v in container.env if v.name == name), "")

    def ready_since(self) -> datetime | None:
        """Return when it became ready."""
        ready = self.condition("Ready")
        return ready.last_transition_time if ready is not None and ready.status == "True" else None

    def owned_by(self, uid: str) -> bool:
        """Return whether the pod was made for the object with that uid, and not for an earlier one of the same name."""
        return any(reference.get("uid") == uid for reference in self.metadata.owner_references)
