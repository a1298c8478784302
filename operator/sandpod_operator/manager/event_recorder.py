"""Posts Events, in the background and at a bounded rate: reporting must neither slow the work nor flood the cluster.

An Event's name comes from what it says, so the same Event never exists twice.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final

from sandpod_api.base import rfc3339
from sandpod_api.names import child_name
from sandpod_kube.errors import ClusterError, ConflictError
from sandpod_kube.resources import EVENTS
from sandpod_operator.metrics import Metrics
from sandpod_operator.model.actions import Emit

_log = logging.getLogger(__name__)

COMPONENT: Final = "sandpod-operator"
_WAITING: Final = 500
_PER_SECOND: Final = 20.0

Post = Callable[[dict[str, Any]], Awaitable[object]]


def build_event(emit: Emit, now: datetime) -> dict[str, Any]:
    """Return the Event object."""
    about, time = emit.metadata, rfc3339(now)
    digest = hashlib.sha256(f"{about.uid} {emit.reason} {emit.message}".encode()).hexdigest()[:16]
    return {
        **EVENTS.header,
        "metadata": {"name": child_name(about.name, digest), "namespace": about.namespace},
        "involvedObject": {**emit.resource.header, "namespace": about.namespace, "name": about.name, "uid": about.uid},
        "type": emit.kind,
        "reason": emit.reason,
        "message": emit.message,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
    }


class EventPoster:
    """A short queue of Events and the task that posts them."""

    def __init__(self, post: Post, metrics: Metrics, clock: Callable[[], datetime]) -> None:
        self._post, self._metrics, self._clock = post, metrics, clock
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_WAITING)

    def emit(self, emit: Emit) -> None:
        """Have an Event posted soon, or dropped and counted when too many wait already."""
        try:
            self._queue.put_nowait(build_event(emit, self._clock()))
        except asyncio.QueueFull:
            self._metrics.events_dropped.inc()

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            event = await self._queue.get()
            try:
                await self._post(event)
            except ConflictError:
                pass  # It has been posted already.
            except ClusterError as error:
                _log.debug("an Event was not posted: %s", error)
                self._metrics.events_dropped.inc()
            await asyncio.sleep(1 / _PER_SECOND)
