"""Observe, plan, apply, record: the same for every cause, be it an event, a due date or a resync."""

import time
from datetime import datetime
from typing import Final

from sandpod_kube import resources
from sandpod_kube.errors import ClusterError
from sandpod_kube.resources import Key
from sandpod_operator.controllers import observer
from sandpod_operator.controllers.applier import Applier
from sandpod_operator.controllers.context import Context
from sandpod_operator.controllers.dispatcher import Dispatcher
from sandpod_operator.model.actions import PatchStatus, Plan
from sandpod_operator.planning.policies import plan_namespace, plan_template
from sandpod_operator.planning.pool import PoolPlan, plan_pool
from sandpod_operator.planning.sandbox import plan_sandbox

# A refusal or a conflict changes what is seen; after the second of them in a row the queue's back-off takes over.
_PASSES: Final = 3


class Reconciler:
    """Brings one object's surroundings to what it says."""

    def __init__(self, context: Context, dispatcher: Dispatcher) -> None:
        self._context = context
        self._applier = Applier(context, dispatcher)

    async def reconcile(self, key: Key) -> datetime | None:
        """Work on one key, and return when to look again at the latest; None means when something happens.

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
            self._context.line(key.namespace).failed(self._context.store.uid_of(key))
            raise
        finally:
            metrics.reconciles.labels(key.kind, result).inc()
            metrics.reconcile_seconds.labels(key.kind).observe(time.monotonic() - start)
        return due

    async def _passes(self, key: Key) -> datetime | None:
        for _ in range(_PASSES):
            now = self._context.clock().replace(microsecond=0)
            plan = await self._plan(key, now)
            if await self._applier.apply(plan):
                if isinstance(plan, PoolPlan):
                    self._record_pool(plan, now)
                return plan.due
        raise ClusterError("the state changed during every pass")

    async def _plan(self, key: Key, now: datetime) -> Plan:
        """Return what is to be done about an object; nothing once it is gone."""
        context, settings = self._context, self._context.settings
        match key.kind:
            case resources.SANDBOXES.kind:
                sandbox = await observer.observe_sandbox(context, key, now)
                return plan_sandbox(sandbox, settings, now) if sandbox is not None else Plan()
            case resources.POOLS.kind:
                pool = observer.observe_pool(context, key)
                return plan_pool(pool, settings, now) if pool is not None else Plan()
            case resources.TEMPLATES.kind:
                template = context.store.template(key.namespace, key.name)
                policies = observer.policies_of(context, key)
                return plan_template(template, policies) if template is not None else Plan()
            case _:
                widening = observer.find_all_widening(context, key.namespace)
                context.metrics.set_widening(key.namespace, {policy.metadata.name for policy in widening})
                closed = observer.is_closed(context, key.namespace)
                return plan_namespace(key.namespace, closed=closed, widening=widening)

    def _record_pool(self, plan: PoolPlan, now: datetime) -> None:
        """Remember how a pool's sandboxes did, what it has, and what it gave up."""
        state, metadata = self._context.state, plan.pool.metadata
        line = self._context.line(metadata.namespace)
        state.failures[metadata.uid], state.backoffs[metadata.uid] = plan.failures, plan.backoff
        if any(isinstance(action, PatchStatus) for action in plan.actions):
            state.status_written[metadata.uid] = now
        wanted = plan.pool.spec.replicas
        self._context.metrics.set_pool(metadata.namespace, metadata.name, wanted=wanted, ready=plan.ready)
        if plan.gives_to is not None:
            line.gave(plan.gives_to)
        if plan.share is not None:
            line.took_share(plan.share)
