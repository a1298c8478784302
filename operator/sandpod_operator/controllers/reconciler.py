"""Observe, plan, apply, record: the same for every cause, be it an event, a due date or a resync."""

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sandpod_kube import resources
from sandpod_kube.errors import ClusterError
from sandpod_kube.resources import Key
from sandpod_operator.controllers.applier import Applier
from sandpod_operator.controllers.context import Context
from sandpod_operator.controllers.dispatcher import Dispatcher
from sandpod_operator.controllers.policies import NamespaceController, TemplateController
from sandpod_operator.controllers.pools import PoolController
from sandpod_operator.controllers.sandboxes import SandboxController

if TYPE_CHECKING:
    from sandpod_operator.controllers.controller import Controller
    from sandpod_operator.model.actions import Plan

# A refusal or a conflict changes what is seen; after the second of them in a row the queue's back-off takes over.
_PASSES: Final = 3


class Reconciler:
    """Brings one object's surroundings to what it says."""

    def __init__(self, context: Context, dispatcher: Dispatcher) -> None:
        self._context = context
        self._applier = Applier(context, dispatcher)
        self._controllers: dict[str, Controller[Any, Any]] = {
            resources.SANDBOXES.kind: SandboxController(context),
            resources.POOLS.kind: PoolController(context),
            resources.TEMPLATES.kind: TemplateController(context),
            resources.NAMESPACE: NamespaceController(context),
        }

    async def reconcile(self, key: Key) -> datetime | None:
        """Work on one key.

        Returns:
            When to look again at the latest; None means when something happens.

        Raises:
            ClusterError: The API server did not answer, or refused something that should work.
        """
        start = time.monotonic()
        result = "error"
        metrics = self._context.metrics
        try:
            due = await self._passes(key)
            result = "ok"
        except ClusterError:
            self._context.admission.failed(key)
            raise
        finally:
            metrics.reconciles.labels(key.kind, result).inc()
            metrics.reconcile_seconds.labels(key.kind).observe(time.monotonic() - start)
        return due

    async def _passes(self, key: Key) -> datetime | None:
        controller = self._controllers[key.kind]
        for _ in range(_PASSES):
            now = self._context.clock().replace(microsecond=0)
            observed = await controller.observe(key, now)
            if observed is None:
                return None
            plan: Plan = controller.plan(observed, now)
            if await self._applier.apply(plan):
                controller.record(observed, plan, now)
                return plan.due
        raise ClusterError("the state changed during every pass")
