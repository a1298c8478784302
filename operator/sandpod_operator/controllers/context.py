"""What all controllers work with, joined once; among it what the operator remembers and no object says."""

from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Self

from sandpod_api.conditions import Reason
from sandpod_kube.client import KubeClient
from sandpod_kube.errors import DeniedError
from sandpod_kube.resources import POOLS, Key
from sandpod_kube.workqueue import WorkQueue
from sandpod_operator.cache.object_cache import Store
from sandpod_operator.controllers.nodes import Nodes
from sandpod_operator.controllers.traces import around
from sandpod_operator.metrics import Metrics
from sandpod_operator.model.actions import Emit
from sandpod_operator.model.demand import Demand
from sandpod_operator.model.observed import Kernel, PoolBackoff, Refusal, Tally
from sandpod_operator.quota.line import Line
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.status.failures import clean

QUOTA: Final = "exceeded quota"
# Whoever has mended what refused a pod does not wait longer for it to be tried again.
_LONGEST_REFUSAL: Final = timedelta(seconds=60)


@dataclass(kw_only=True, slots=True)
class State:
    """What no object says. Losing it costs a retry, never a wrong decision."""

    refusals: dict[str, Refusal] = field(default_factory=dict)  # by the Sandbox's uid
    kernels: dict[str, Kernel] = field(default_factory=dict)  # of the node of a pod, by the pod's uid
    backoffs: dict[str, PoolBackoff] = field(default_factory=dict)  # by the pool's uid
    resizes: dict[str, Refusal] = field(default_factory=dict)  # of a pod's higher requests, by the pod's uid
    demands: dict[str, Demand] = field(default_factory=dict)  # by the pool's uid
    claims: Counter[Key] = field(default_factory=Counter)  # of a pool since its last plan
    tallies: dict[Key, Tally] = field(default_factory=dict)  # of a pool since its status was last written

    def refused(self, uid: str, error: DeniedError, now: datetime, settings: OperatorSettings) -> None:
        """Record that a sandbox's pod or volume was refused, and when to try again: later each time."""
        before = self.refusals.get(uid)
        attempts = before.attempts + 1 if before is not None else 1
        self.refusals[uid] = Refusal(
            reason=Reason.QUOTA_EXCEEDED if QUOTA in error.message else Reason.ADMISSION_REFUSED,
            message=clean(error.message),
            attempts=attempts,
            until=now + min(settings.refused_wait(attempts - 1), _LONGEST_REFUSAL),
        )

    def trim(self, sandboxes: AbstractSet[str], pods: AbstractSet[str], pools: AbstractSet[str]) -> None:
        """Drop what is kept about objects whose uids are not among these."""
        self.refusals = {uid: refusal for uid, refusal in self.refusals.items() if uid in sandboxes}
        self.resizes = {uid: refusal for uid, refusal in self.resizes.items() if uid in pods}
        self.kernels = {uid: kernel for uid, kernel in self.kernels.items() if uid in pods}
        self.backoffs = {uid: backoff for uid, backoff in self.backoffs.items() if uid in pools}
        self.demands = {uid: demand for uid, demand in self.demands.items() if uid in pools}


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of one operator process."""

    cluster: KubeClient
    settings: OperatorSettings
    metrics: Metrics
    clock: Callable[[], datetime]  # the time with its zone
    emit: Callable[[Emit], None]  # posts an Event, soon
    store: Store
    state: State
    nodes: Nodes
    queue: WorkQueue
    lines: dict[str, Line] = field(default_factory=dict)  # by namespace

    def count_claim(self, namespace: str, pool: str, origin: str = "pool") -> None:
        """Count a claim that a pool met, or was too empty to meet, and have the pool looked at."""
        self.metrics.count_claim(namespace, pool, origin)
        self.state.claims[key := Key(POOLS.kind, namespace, pool)] += 1
        warm, cold = self.state.tallies.get(key, Tally())
        self.state.tallies[key] = Tally(warm + 1, cold) if origin == "pool" else Tally(warm, cold + 1)
        self.queue.add(key)

    def line(self, namespace: str) -> Line:
        """Return the line of those who wait for a place in a namespace."""
        if namespace not in self.lines:
            self.lines[namespace] = Line(
                namespace,
                store=self.store,
                queue=self.queue,
                settings=self.settings,
                clock=self.clock,
                left=self.metrics.count_wait,
            )
        return self.lines[namespace]

    @classmethod
    def create(
        cls,
        *,
        cluster: KubeClient,
        settings: OperatorSettings,
        metrics: Metrics,
        clock: Callable[[], datetime],
        emit: Callable[[Emit], None],
    ) -> Self:
        """Return the parts of an operator that knows nothing yet."""
        store = Store()
        queue = WorkQueue(
            clock=clock,
            backoff_min=settings.backoff_min,
            backoff_max=settings.backoff_max,
            around=around(store),
            waited=lambda key, time: metrics.queue_seconds.labels(key.kind).observe(time.total_seconds()),
        )
        metrics.queue_depth.set_function(lambda: len(queue))
        made = cls(cluster, settings, metrics, clock, emit, store, State(), Nodes(cluster), queue)
        store.on_claim = made.count_claim
        metrics.watch_lines(lambda: {space: line.waiting() for space, line in made.lines.items()})
        return made
