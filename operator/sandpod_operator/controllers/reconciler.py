"""Observe, plan, apply, record: the same for every cause, be it an event, a due date or a resync."""

import asyncio
import time
from datetime import datetime
from typing import Final

from sandpod_api import names
from sandpod_api.conditions import ConditionType, find, is_true
from sandpod_api.types import Sandbox
from sandpod_kube import resources
from sandpod_kube.errors import ClusterError, ConflictError, DeniedError, NotFoundError
from sandpod_kube.resources import Key, key_of
from sandpod_operator.cache.object_cache import Store
from sandpod_operator.controllers import observer
from sandpod_operator.controllers.context import QUOTA, Context
from sandpod_operator.controllers.dispatcher import Dispatcher
from sandpod_operator.manifests.pod import found_open
from sandpod_operator.metrics import Metrics
from sandpod_operator.model.actions import Action, Apply, Create, Delete, Emit, Patch, PatchStatus, Plan
from sandpod_operator.planning.network_policies import plan_namespace, plan_template
from sandpod_operator.planning.pool import PoolPlan, plan_pool
from sandpod_operator.planning.sandbox import plan_sandbox
from sandpod_operator.status import lifetime
from sandpod_operator.status.failures import clean
from sandpod_operator.status.sandbox import is_final

# A refusal or a conflict changes what is seen; after the second of them in a row the queue's back-off takes over.
_PASSES: Final = 3


class Reconciler:
    """Brings one object's surroundings to what it says.

    Answers to its writes are as good as watch events, and earlier: they go to the dispatcher.
    """

    def __init__(self, context: Context, dispatcher: Dispatcher) -> None:
        self._context, self._cluster, self._dispatcher = context, context.cluster, dispatcher

    async def reconcile(self, key: Key) -> datetime | None:
        """Work on one key, and return when to look again at the latest; None means when something happens.

        Raises ClusterError: the API server did not answer, or refused something that should work.
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
            if await self._apply(plan):
                if isinstance(plan, PoolPlan):
                    self._record_pool(plan)
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
                policies = context.store.policies(key.namespace)
                return plan_template(template, policies) if template is not None else Plan()
            case _:
                templates = {each.name for each in context.store.keys(resources.TEMPLATES, key.namespace)}
                plan = plan_namespace(key.namespace, list(context.store.policies(key.namespace)), templates)
                found = {action.metadata.name for action in plan.actions if isinstance(action, Emit)}
                context.metrics.set_widening(key.namespace, found)
                return plan

    def _record_pool(self, plan: PoolPlan) -> None:
        """Remember how a pool's sandboxes did, what it has, and what it gave up."""
        metadata = plan.pool.metadata
        line = self._context.line(metadata.namespace)
        self._context.state.backoffs[metadata.uid] = plan.backoff
        wanted = plan.pool.spec.replicas
        self._context.metrics.set_pool(metadata.namespace, metadata.name, wanted=wanted, ready=plan.ready)
        if plan.gives_to is not None:
            line.gave(plan.gives_to)
        if plan.share is not None:
            line.took_share(plan.share)

    async def _apply(self, plan: Plan) -> bool:
        """Do what the plan says, in order; False when an answer changed what is seen, which voids the rest of it."""
        for batch in plan.batches():
            done = await asyncio.gather(*map(self._do, batch), return_exceptions=True)
            for error in done:
                if isinstance(error, BaseException):
                    raise error
            if not all(done):
                return False
        return True

    async def _do(self, action: Action) -> bool:
        match action:
            case Emit():
                self._context.emit(action)
            case Create():
                return await self._create(action)
            case Apply(resource=resource, manifest=manifest):
                self._dispatcher.saw(resource, await self._cluster.apply(resource, manifest))
            case PatchStatus() | Patch() | Delete():
                return await self._change(action)
        return True

    async def _create(self, action: Create) -> bool:
        key = key_of(action.resource, action.manifest)
        try:
            made = await self._cluster.create(action.resource, action.manifest)
        except ConflictError:
            return action.may_exist or await self._look_again(action.resource, key)
        except DeniedError as error:
            labels = action.manifest["metadata"].get("labels") or {}
            owner = self._context.store.sandbox(key.namespace, labels.get(names.LABEL_SANDBOX, ""))
            if owner is None:
                raise  # Not a sandbox's pod or volume: a pool's sandbox, which only wrong rights or an old CRD refuse.
            if action.resource is resources.PODS and QUOTA in error.message:
                self._context.line(key.namespace).refused(owner, clean(error.message))
            else:
                now, settings = self._context.clock(), self._context.settings
                self._context.state.refused(owner.metadata.uid, error, now, settings)
            return False
        owner_uid = str(action.manifest["metadata"]["ownerReferences"][0]["uid"])
        self._context.state.refusals.pop(owner_uid, None)
        self._dispatcher.saw(action.resource, made)
        if action.resource is resources.PODS:
            self._context.line(key.namespace).let_in(owner_uid)
        return True

    async def _change(self, action: PatchStatus | Patch | Delete) -> bool:
        resource, key, metadata = action.resource, action.key, action.metadata
        before = None
        try:
            match action:
                case PatchStatus():
                    before = self._context.store.sandbox(*key[1:]) if resource is resources.SANDBOXES else None
                    found = await self._cluster.patch_status(resource, *key[1:], action.status)
                case Patch():
                    found = await self._cluster.patch(resource, *key[1:], action.change)
                case Delete():
                    version = {"resourceVersion": metadata.resource_version} if action.unchanged else {}
                    found = await self._cluster.delete(resource, *key[1:], {"uid": metadata.uid, **version})
        except NotFoundError:
            self._dispatcher.lost(key, metadata.uid)
            return isinstance(action, Delete)
        except ConflictError:
            return await self._look_again(resource, key)
        if not isinstance(action, Delete) or found.get("kind") == resource.kind:
            self._dispatcher.saw(resource, found)  # One that is deleted may still be going.
        elif resource is not resources.PODS:  # Quotas count a pod until its event has come.
            self._dispatcher.lost(key, metadata.uid)
        if before is not None:
            record_status(self._context.metrics, before, self._context.store)
        return True

    async def _look_again(self, resource: resources.Resource, key: Key) -> bool:
        """Take in an object that was claimed, used or made anew since it was seen: nothing is taken from it unseen."""
        self._dispatcher.saw(resource, await self._cluster.get(resource, key.namespace, key.name))
        return False


def record_status(metrics: Metrics, before: Sandbox, store: Store) -> None:
    """Count what the status of a Sandbox, as it was before a write and is now in the store, says is new."""
    after = store.sandbox(before.metadata.namespace, before.metadata.name)
    if after is None:
        return
    old, new = before.status, after.status
    seconds, resumed = lifetime.start_seconds(after, new)
    if old.start_time is None and seconds is not None:
        origin = "resume" if resumed else "pool" if names.LABEL_POOL in after.metadata.labels else "direct"
        metrics.start_seconds.labels(origin).observe(seconds)
        if origin == "direct" and (pool := _pool_missed(store, after)):
            metrics.count_claim(after.metadata.namespace, pool, origin)
    if is_final(new.conditions) and not is_final(old.conditions):
        metrics.ended.labels(new.reason).inc()
    if found_open(after) and not found_open(before):
        metrics.open_network.labels("ended" if is_final(new.conditions) else "allowed").inc()
    expired = find(new.conditions, ConditionType.EXPIRED)
    if expired is not None and expired.status == "True" and not is_true(old.conditions, ConditionType.EXPIRED):
        metrics.ended.labels(expired.reason).inc()


def _pool_missed(store: Store, sandbox: Sandbox) -> str:
    """Return the pool that was too empty for a claim, so that a Sandbox was made for it; empty where none would do.

    Where several have its template it is the first by name: each claim is counted once.
    """
    spec, metadata = sandbox.spec, sandbox.metadata
    template = store.template(metadata.namespace, spec.template_ref.name)
    if template is None or names.ANNOTATION_CLAIM_ID not in metadata.annotations:
        return ""
    # Warm ones have no network profile and their template's workspace: who asks for others never gets one.
    if spec.network != names.NETWORK_NONE or spec.workspace not in (None, template.spec.workspace):
        return ""
    pools = (pool for pool in store.pools(metadata.namespace) if pool.spec.template_ref == spec.template_ref)
    return min((pool.metadata.name for pool in pools), default="")
