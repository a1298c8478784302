"""Observe, plan, apply: the same for every cause, be it an event, a due date or a resync.

It takes no decision about objects; it only says what an answer of the API server means for the next pass.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Protocol

from sandpod_api import names
from sandpod_kube import resources
from sandpod_kube.client import KubeClient
from sandpod_kube.errors import ClusterError, ConflictError, DeniedError, NotFoundError
from sandpod_kube.resources import Key, Resource, key_of
from sandpod_operator.cache.object_cache import Store
from sandpod_operator.controllers import observer
from sandpod_operator.controllers.metrics_recorder import measure_namespace, measure_pool, measure_status
from sandpod_operator.controllers.nodes import Nodes
from sandpod_operator.controllers.state import QUOTA, Notes
from sandpod_operator.manifests.security import said_of_user_namespaces
from sandpod_operator.metrics import Metrics
from sandpod_operator.model.actions import Action, Apply, Create, Delete, Emit, Patch, PatchStatus, Plan
from sandpod_operator.planning.namespace import plan_namespace
from sandpod_operator.planning.pool import PoolPlan, plan_pool
from sandpod_operator.planning.sandbox import plan_sandbox
from sandpod_operator.planning.template import plan_template
from sandpod_operator.quota.admission import Admission
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.status.failures import clean

_log = logging.getLogger(__name__)

# A refusal or a conflict changes what is seen; after the second of them in a row the queue's back-off takes over.
_PASSES: Final = 3


class Listener(Protocol):
    """Whom the answers of the API server are told: they are as good as watch events, and earlier."""

    def saw(self, resource: Resource, manifest: dict[str, Any]) -> None:
        """An object is so now."""
        ...

    def lost(self, key: Key, uid: str = "") -> None:
        """An object is gone."""
        ...


class Reconciler:
    """Brings one object's surroundings to what it says."""

    def __init__(
        self,
        *,
        cluster: KubeClient,
        store: Store,
        notes: Notes,
        admission: Admission,
        listener: Listener,
        emit: Callable[[Emit], None],
        metrics: Metrics,
        settings: OperatorSettings,
        clock: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._nodes = Nodes(cluster)
        self._store = store
        self._notes = notes
        self._admission = admission
        self._listener = listener
        self._emit = emit
        self._metrics = metrics
        self._settings = settings
        self._clock = clock

    async def reconcile(self, key: Key) -> datetime | None:
        """Work on one key.

        Returns:
            When to look again at the latest; None means when something happens.

        Raises:
            ClusterError: The API server did not answer, or said no to something that should work.
        """
        start = time.monotonic()
        result = "error"
        try:
            due = await self._passes(key)
            result = "ok"
        except ClusterError:
            self._admission.failed(key)
            raise
        finally:
            self._metrics.reconciles.labels(key.kind, result).inc()
            self._metrics.reconcile_seconds.labels(key.kind).observe(time.monotonic() - start)
        return due

    async def _passes(self, key: Key) -> datetime | None:
        for _ in range(_PASSES):
            now = self._clock().replace(microsecond=0)
            plan = await self._decide(key, now)
            if await self._carry_out(plan):
                if isinstance(plan, PoolPlan) and plan.gives_to is not None:
                    self._admission.gave(plan.gives_to)
                return plan.due
        raise ClusterError("the state changed under every try")

    async def _decide(self, key: Key, now: datetime) -> Plan:
        if key.kind == resources.SANDBOXES.kind:
            return await self._decide_sandbox(key, now)
        if key.kind == resources.POOLS.kind:
            return self._decide_pool(key, now)
        if key.kind == resources.TEMPLATES.kind:
            template = observer.observe_template(self._store, key)
            return plan_template(template) if template is not None else Plan()
        return self._decide_namespace(key.namespace)

    async def _decide_sandbox(self, key: Key, now: datetime) -> Plan:
        observed = observer.observe_sandbox(self._store, self._notes, key, self._settings)
        if observed is None:
            return Plan()
        node = observer.node_to_look_at(observed)
        if node is not None and observed.pod is not None:
            # Once for each pod, and not for each node: nodes restart.
            kernel = await self._nodes.kernel(node)
            self._notes.kernels[observed.pod.metadata.uid] = kernel
            observed = replace(observed, kernel=kernel)
        spec = observed.template.spec if observed.template is not None and observed.pod is None else None
        if spec and said_of_user_namespaces(spec, default=self._settings.host_users) is None:
            observed = replace(observed, user_namespaces=await self._nodes.give_user_namespaces(spec))
        plan = plan_sandbox(observed, self._settings, now)
        held = self._admission.held(observed.sandbox, wants=plan.makes(resources.PODS))
        return plan if held is None else plan_sandbox(replace(observed, refusal=held), self._settings, now)

    def _decide_pool(self, key: Key, now: datetime) -> Plan:
        observed = observer.observe_pool(self._store, self._notes, key, burst=self._settings.pool_burst)
        if observed is None:
            self._metrics.forget_pool(key.namespace, key.name)
            self._admission.forget_pool(key)
            return Plan()
        observed = replace(observed, neighbours=self._admission.neighbours(key))
        plan: PoolPlan = plan_pool(observed, self._settings, now)
        uid = observed.pool.metadata.uid
        self._notes.failures[uid], self._notes.paces[uid] = plan.failures, plan.pace
        if any(isinstance(action, PatchStatus) for action in plan.actions):
            self._notes.status_written[uid] = now
        measure_pool(self._metrics, observed)
        if plan.share is not None:
            self._admission.took_share(plan.share)
        return plan

    def _decide_namespace(self, namespace: str) -> Plan:
        observed = observer.observe_namespace(self._store, namespace)
        measure_namespace(self._metrics, observed)
        return plan_namespace(observed)

    async def _carry_out(self, plan: Plan) -> bool:
        """Do what the plan says, in order.

        Returns:
            False when an answer changed what is seen, so that the rest of the plan is void.
        """
        for together in plan.batches():
            done = await asyncio.gather(*map(self._do, together), return_exceptions=True)
            for error in done:
                if isinstance(error, BaseException):
                    raise error
            if not all(done):
                return False
        return True

    async def _do(self, action: Action) -> bool:
        match action:
            case Emit():
                self._emit(action)
                return True
            case Create():
                return await self._create(action)
            case Apply(resource=resource, manifest=manifest):
                self._listener.saw(resource, await self._cluster.apply(resource, manifest))
                return True
            case PatchStatus():
                return await self._patch_status(action)
            case Patch():
                return await self._patch(action)
            case Delete():
                return await self._delete(action)

    async def _create(self, action: Create) -> bool:
        key = key_of(action.resource, action.manifest)
        try:
            made = await self._cluster.create(action.resource, action.manifest)
        except ConflictError:
            if action.may_exist:
                return True
            self._listener.saw(action.resource, await self._cluster.get(action.resource, key.namespace, key.name))
            return False
        except DeniedError as error:
            owner = self._store.sandbox(key.namespace, _sandbox_of(action.manifest))
            if owner is None:
                raise  # Not a sandbox's pod or volume: a pool's sandbox, which only wrong rights or an old CRD refuse.
            if action.resource is resources.PODS and QUOTA in error.message:
                self._admission.refused(owner, clean(error.message))
            else:
                self._notes.refused(owner.metadata.uid, error, self._clock(), self._settings)
            return False
        self._notes.refusals.pop(_owner_uid(action.manifest), None)
        self._listener.saw(action.resource, made)
        if action.resource is resources.PODS:
            self._admission.let_in(key.namespace, _owner_uid(action.manifest))
        return True

    async def _patch_status(self, action: PatchStatus) -> bool:
        key = Key(action.resource.kind, action.namespace, action.name)
        before = self._store.sandbox(action.namespace, action.name)
        try:
            after = await self._cluster.patch_status(action.resource, action.namespace, action.name, action.status)
        except NotFoundError:
            self._listener.lost(key)
            return False
        self._listener.saw(action.resource, after)
        if action.resource is resources.SANDBOXES and before is not None:
            measure_status(self._metrics, before, self._store)
        return True

    async def _patch(self, action: Patch) -> bool:
        change: dict[str, Any] = {"metadata": {"resourceVersion": action.resource_version}}
        if action.labels:
            change["metadata"]["labels"] = action.labels
        if action.spec:
            change["spec"] = action.spec
        try:
            after = await self._cluster.patch(action.resource, action.namespace, action.name, change)
        except NotFoundError:
            self._listener.lost(Key(action.resource.kind, action.namespace, action.name))
            return False
        except ConflictError:
            # Used or changed since it was seen: look again.
            self._listener.saw(action.resource, await self._cluster.get(*key_parts(action)))
            return False
        self._listener.saw(action.resource, after)
        return True

    async def _delete(self, action: Delete) -> bool:
        key = Key(action.resource.kind, action.namespace, action.name)
        preconditions = {"uid": action.uid}
        if action.resource_version is not None:
            preconditions["resourceVersion"] = action.resource_version
        try:
            answer = await self._cluster.delete(action.resource, action.namespace, action.name, preconditions)
        except NotFoundError:
            self._listener.lost(key, action.uid)
            return True
        except ConflictError:
            # Claimed, used or remade since it was seen: look again before anything is taken away.
            self._listener.saw(action.resource, await self._cluster.get(*key_parts(action)))
            return False
        if answer.get("kind") == action.resource.kind:
            self._listener.saw(action.resource, answer)
        if action.resource is not resources.PODS:
            self._listener.lost(key, action.uid)
        return True


def key_parts(action: Delete | Patch) -> tuple[Resource, str, str]:
    """Return what names the object of an action."""
    return action.resource, action.namespace, action.name


def _sandbox_of(manifest: dict[str, Any]) -> str:
    labels = manifest["metadata"].get("labels") or {}
    return str(labels.get(names.LABEL_SANDBOX, ""))


def _owner_uid(manifest: dict[str, Any]) -> str:
    references = manifest["metadata"].get("ownerReferences") or [{}]
    return str(references[0].get("uid", ""))
