"""What the REST API alone returns of sandboxes: how they are and why, what they use and run, and whose they are."""

from typing import Annotated

from pydantic import Field

from sandpod_gateway.api.account_results import PoolCondition
from sandpod_gateway.api.results import Count, OfSandbox, OnlyIfSet, ResultModel, SandboxInfo
from sandpod_gateway.api.run_results import RunInfo


class SandboxCondition(PoolCondition):
    """What is observed of a sandbox."""

    since: str | None = None  # when its status last changed, RFC 3339


class SandboxEventInfo(ResultModel):
    """Something that happened to a sandbox."""

    time: str | None = None  # when it did last, RFC 3339
    reason: str
    message: str
    warning: bool = False
    count: Count = 1


class SandboxLoad(ResultModel):
    """What a sandbox uses at this moment. Bytes; those of memory are 0 where nothing limits it."""

    processors: Annotated[float, Field(ge=0)]  # in use: 1.5 is one and a half
    memory: Count
    memory_limit: Count
    disk: Count
    disk_limit: Count


class SandboxActivity(OfSandbox):
    """What a sandbox does at this moment."""

    load: SandboxLoad
    runs: list[RunInfo]  # that go on


class ActivityList(ResultModel):
    """What the caller's sandboxes do: those in use that the gateway which answers has a stream to."""

    sandboxes: list[SandboxActivity]


class SandboxState(SandboxInfo):
    """All that is known of a sandbox."""

    user: OnlyIfSet[str] = None  # whose it is, for administrators
    tenant: OnlyIfSet[str] = None  # that the user is of; empty for the default one
    load: SandboxLoad | None = None  # null where it does not run, or does not answer
    runs: list[RunInfo] = Field(default_factory=list)  # that go on
    conditions: list[SandboxCondition]
    events: list[SandboxEventInfo]  # oldest first; none where nobody keeps them


class TemplateSummary(ResultModel):
    """A kind of sandbox, and what is between its programs and the rest."""

    template: str  # its name
    runtime_class: str | None = None  # by which each has a kernel of its own; null where they share their machine's
    networks: list[str]  # profiles that may be asked for; none is no network at all


class TemplateList(ResultModel):
    """The templates that the caller may use."""

    backend: str  # kubernetes, where sandboxes are pods; local, where they are processes of the server's machine
    templates: list[TemplateSummary]


class OwnedSandbox(SandboxInfo):
    """A sandbox as administrators see it."""

    user: str  # whose it is
    tenant: str  # that the user is of; empty for the default one


class OwnedSandboxList(ResultModel):
    """The sandboxes of all users of a tenant, or of all tenants."""

    sandboxes: list[OwnedSandbox]
