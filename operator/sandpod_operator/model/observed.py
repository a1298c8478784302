"""What one reconcile sees: frozen values. The plans work on these alone: nothing else can decide anything."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, NamedTuple, Self

from sandpod_api.conditions import Reason
from sandpod_api.types import Sandbox, SandboxPool, SandboxTemplate
from sandpod_kube.resources import Key
from sandpod_operator.model.demand import Demand
from sandpod_operator.model.pod import Pod

FIRST: Final = 4  # sandboxes of a pool that may be under way before one of them was ready
_MOST: Final = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """The API server did not take a sandbox's pod."""

    reason: Reason  # QuotaExceeded or AdmissionRefused
    message: str  # the API server's sentence
    attempts: int  # in a row
    until: datetime  # when to try again


class Kernel(NamedTuple):
    """The kernel of a node. Both fields are empty if the operator may not read nodes."""

    boot_id: str = ""
    release: str = ""  # as `uname -r` says it


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What a pool has of the warm sandboxes that it wants."""

    key: Key
    wanted: int
    ready: int = 0  # those that can be claimed
    unscheduled: int = 0  # those that no node takes


class Tally(NamedTuple):
    """Claims of a pool that its status does not count yet."""

    warm: int = 0  # that took a warm sandbox
    cold: int = 0  # that found none, and had one made


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    """What a pool has to know about the others in its namespace."""

    wait_for_node: bool = False  # whether other pools have sandboxes that no node takes
    nodes_yield_until: datetime | None = None  # until then no sandbox of a pool may wait for a node, since claims do
    gives_to: Key | None = None  # for whom the pool has to give a warm sandbox up now


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolBackoff:
    """How a pool's last sandboxes did, and so how many may be starting at once: what is remembered between two plans.

    A pool begins with a few. Each that gets ready doubles what may be under way, so a pool that works is filled at
    once. One that fails, or that no node takes, brings it down to one, and one that the quota refuses to a few: what is
    wrong with some is likely wrong with the next. So a broken template costs a few pods, whatever the pool's size.
    """

    template: str = ""  # the hash of the template that they were made from
    window: int = FIRST  # how many may be under way
    proven: bool = False  # whether one was ever ready
    good: frozenset[str] = frozenset()  # names of those that were seen ready
    bad: frozenset[str] = frozenset()  # names of those that were seen to fail, or that no node takes
    failures: int = 0  # sandboxes that failed since a current one was last ready
    status_written: datetime | None = None

    def after(self, template: str | None, *, good: Collection[str], bad: Collection[str], refused: bool) -> Self:
        """Return the back-off after what is observed now, of the template with that hash; another one begins anew.

        `good` and `bad` name its sandboxes that are ready and that can't start; with `refused` the quota keeps some
        waiting.
        """
        if template is None:
            return self
        before = self if self.template == template else type(self)(template=template)
        all_good, all_bad = frozenset(good), frozenset(bad)
        window = min(_MOST, before.window * 2 ** min(len(all_good - before.good), 10))
        if refused:
            window = min(window, FIRST)
        if all_bad - before.bad:
            window = 1
        proven = before.proven or bool(good)
        return replace(self, template=template, window=window, proven=proven, good=all_good, bad=all_bad)


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedSandbox:
    """A Sandbox and what belongs to it."""

    sandbox: Sandbox
    pod: Pod | None = None  # its own; one that an earlier Sandbox of the same name left is not
    name_taken: bool = False  # whether such a pod is still there
    template: SandboxTemplate | None = None
    refusal: Refusal | None = None  # of its pod when it was last tried
    resize_refusal: Refusal | None = None  # of its pod's higher requests when they were last asked for
    closed: bool = True  # whether the namespace's deny-all policy is in force
    kernel: Kernel | None = None  # of its pod's node, once that was looked at
    user_namespaces: bool = False  # whether its pod can have one of its own; asked only where that decides
    open_allowed: bool = False  # whether the operator lets sandboxes serve whose network is open
    # host:port that its profile opens and no sandbox may reach, as far as is known before its pod has a node.
    opened: str | None = None

    @property
    def suspended(self) -> bool:
        """Whether it must have no pod, as its spec says."""
        return self.sandbox.spec.operating_mode == "Suspended"

    @property
    def was_ready(self) -> bool:
        """Whether it has been ready since it last began to run: a resume begins again, with another pod."""
        return self.sandbox.status.start_time is not None and not self.suspended

    @property
    def persistent(self) -> bool:
        """Whether its workspace outlives its pod, as far as that is known: without its template only its own says."""
        workspace = self.sandbox.spec.workspace or (self.template.spec.workspace if self.template is not None else None)
        return workspace is not None and workspace.persistent

    @property
    def suspends(self) -> bool:
        """Whether it is suspended when idle instead of ended."""
        return self.persistent and (self.template is None or self.template.spec.when_idle == "Suspend")


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedPool:
    """A pool and the unclaimed Sandboxes that it owns."""

    pool: SandboxPool
    members: tuple[Sandbox, ...] = ()  # in no order, without those that are being deleted
    template: SandboxTemplate | None = None
    suffixes: tuple[str, ...] = ()  # unused name endings, one for each sandbox that may be made now
    backoff: PoolBackoff = field(default_factory=PoolBackoff)
    demand: Demand | None = None  # by the last plan; None for the first
    claims: int = 0  # since then, warm ones and those that found none
    tally: Tally = field(default_factory=Tally)
    neighbours: Neighbours = field(default_factory=Neighbours)
