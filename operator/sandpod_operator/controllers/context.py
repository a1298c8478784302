"""What all controllers work with, joined once."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from sandpod_kube.client import KubeClient
from sandpod_operator.cache.object_cache import Store
from sandpod_operator.controllers.state import State
from sandpod_operator.controllers.workqueue import WorkQueue
from sandpod_operator.metrics import Metrics
from sandpod_operator.model.actions import Emit
from sandpod_operator.quota.admission import Admission
from sandpod_operator.settings import OperatorSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """The parts of one operator process.

    Attributes:
        cluster: The API server.
        settings: The operator's.
        metrics: Where work is counted.
        clock: Returns the time with its zone.
        emit: Posts an Event, soon.
        store: The objects as they are known.
        state: What no object says.
        queue: The keys to work on.
        admission: Who waits for a place.
    """

    cluster: KubeClient
    settings: OperatorSettings
    metrics: Metrics
    clock: Callable[[], datetime]
    emit: Callable[[Emit], None]
    store: Store
    state: State
    queue: WorkQueue
    admission: Admission

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
        store = Store(metrics.count_claim)
        queue = WorkQueue(clock=clock, backoff_min=settings.backoff_min, backoff_max=settings.backoff_max)
        metrics.queue_depth.set_function(lambda: len(queue))
        return cls(
            cluster=cluster,
            settings=settings,
            metrics=metrics,
            clock=clock,
            emit=emit,
            store=store,
            state=State(),
            queue=queue,
            admission=Admission(store=store, queue=queue, settings=settings, clock=clock),
        )
