"""Observe, plan, apply, record: the same for every cause, be it an event, a due date or a resync."""

import asyncio
import secrets
import time
from dataclasses import replace
from datetime import datetime
from typing import Final

from sandpod_api import names
from sandpod_api.conditions import ConditionType, is_true
from sandpod_api.types import Sandbox, SandboxPool
from sandpod_kube import resources
from sandpod_kube.errors import ClusterError, ConflictError, DeniedError, NotFoundError
from sandpod_kube.resources import Key, key_of
from sandpod_operator.controllers.context import QUOTA, Context
from sandpod_operator.controllers.dispatcher import Dispatcher
from sandpod_operator.controllers.records import record_status
from sandpod_operator.controllers.resizer import Resizer
from sandpod_operator.manifests.pod import find_profile
from sandpod_operator.manifests.security import host_users_setting, opened_by
from sandpod_operator.model.actions import Action, Apply, Create, Delete, Emit, Patch, PatchStatus, Plan, Resize
from sandpod_operator.model.observed import ObservedPool, ObservedSandbox, PoolBackoff, Tally
from sandpod_operator.planning.network_policies import is_closed, plan_namespace, plan_template
from sandpod_operator.planning.pool import PoolPlan, plan_pool
from sandpod_operator.planning.sandbox import plan_sandbox, wants_pod
from sandpod_operator.status.failures import clean
from sandpod_telemetry import attributes, tracing

# A refusal or a conflict changes what is seen; after the second of them in a row the queue's back-off takes over.
_PASSES: Final = 3
# Without vowels and look-alikes, as Kubernetes' own: no words, no confusion.
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX: Final = 8
_LETTERS: Final = bytes(ord(_ALPHABET[byte % len(_ALPHABET)]) for byte in range(256))  # names need not be of even odds


class Reconciler:
    """Brings one object's surroundings to what it says.

    Answers to its writes are as good as watch events, and earlier: they go to the dispatcher.
    """

    def __init__(self, context: Context, dispatcher: Dispatcher) -> None:
        self._context, self._store, self._cluster = context, context.store, context.cluster
        self._dispatcher, self._resizer = dispatcher, Resizer(context, dispatcher)

    async def reconcile(self, key: Key) -> datetime | None:
        """Work on one key, and return when to look again at the latest; None means when something happens.

        Raises ClusterError: the API server did not answer, or refused something that should work.
        """
        start, result, metrics = time.monotonic(), "error", self._context.metrics
        try:
            due = await self._passes(key)
            result = "ok"
        except ClusterError as error:
            tracing.fail(type(error).__name__)
            self._context.line(key.namespace).failed(self._store.uid_of(key))
            raise
        finally:
            metrics.reconciles.labels(key.kind, result).inc()
            metrics.reconcile_seconds.labels(key.kind).observe(time.monotonic() - start)
        return due

    async def _passes(self, key: Key) -> datetime | None:
        for _ in range(_PASSES):
            now = self._context.clock().replace(microsecond=0)
            plan = await self._plan(key, now)
            if plan.actions:
                tracing.keep()
                tracing.note({attributes.CHANGES: len(plan.actions)})
            if await self._apply(plan):
                if isinstance(plan, PoolPlan):
                    self._record_pool(plan)
                return plan.due
        raise ClusterError("the state changed during every pass")

    async def _plan(self, key: Key, now: datetime) -> Plan:
        store, (namespace, name) = self._store, key[1:]
        match key.kind:
            case resources.SANDBOXES.kind:
                sandbox = store.sandbox(namespace, name)
                return await self._plan_sandbox(sandbox, now) if sandbox is not None else Plan()
            case resources.POOLS.kind:
                if (pool := store.pool(namespace, name)) is not None:
                    return self._plan_pool(pool, key, now)
                self._context.metrics.forget_pool(namespace, name)
                self._context.state.claims.pop(key, None)
                self._context.state.tallies.pop(key, None)
                self._context.line(namespace).forget_pool(key)
                return Plan()
            case resources.TEMPLATES.kind:
                template = store.template(namespace, name)
                return plan_template(template, store.policies(namespace)) if template is not None else Plan()
            case _:
                templates = {each.name for each in store.keys(resources.TEMPLATES, namespace)}
                plan = plan_namespace(namespace, list(store.policies(namespace)), templates)
                found = {action.metadata.name for action in plan.actions if isinstance(action, Emit)}
                self._context.metrics.set_widening(namespace, found)
                return plan

    async def _plan_sandbox(self, sandbox: Sandbox, now: datetime) -> Plan:
        """Return what is to be done about a Sandbox; where the quota is full, one that wants a pod joins the line."""
        context, store, state, settings = self._context, self._store, self._context.state, self._context.settings
        namespace, uid = sandbox.metadata.namespace, sandbox.metadata.uid
        found = store.pod(namespace, sandbox.metadata.name)
        pod = found if found is not None and found.metadata.owned_by(uid) else None
        template = store.template(namespace, sandbox.spec.template_ref.name)
        profile = find_profile(sandbox, template) if template is not None and found is None else None
        observed = ObservedSandbox(
            sandbox=sandbox,
            pod=pod,
            name_taken=found is not None and pod is None,
            template=template,
            refusal=state.refusals.get(uid),
            resize_refusal=state.resizes.get(pod.metadata.uid) if pod is not None else None,
            closed=is_closed(namespace, store.policy(namespace, names.POLICY_DENY_ALL)),
            kernel=state.kernels.get(pod.metadata.uid) if pod is not None else None,
            open_allowed=settings.allow_open_network,
            opened=opened_by(profile, template, settings) if template is not None and profile is not None else None,
        )
        if pod is not None and pod.node_name is not None and _has_to_compare(observed):
            # Once for each pod, and not for each node: nodes restart.
            state.kernels[pod.metadata.uid] = kernel = await context.nodes.kernel(pod.node_name)
            observed = replace(observed, kernel=kernel)
        spec = template.spec if template is not None and pod is None else None
        if spec and host_users_setting(spec, default=settings.host_users) is None:
            observed = replace(observed, user_namespaces=await context.nodes.give_user_namespaces(spec))
        wants, placed = wants_pod(observed, settings, now), pod is None or pod.node_name is not None
        held = context.line(namespace).held(sandbox, wants=wants, placed=placed)
        return plan_sandbox(observed if held is None else replace(observed, refusal=held), settings, now)

    def _plan_pool(self, pool: SandboxPool, key: Key, now: datetime) -> PoolPlan:
        context, uid = self._context, pool.metadata.uid
        # By uid, since the pool may have been made anew.
        owned = (s for s in context.store.members(*key[1:]) if s.metadata.owned_by(uid))
        observed = ObservedPool(
            pool=pool,
            members=tuple(s for s in owned if s.metadata.deletion_timestamp is None),
            template=context.store.template(key.namespace, pool.spec.template_ref.name),
            suffixes=_suffixes(context.settings.pool_burst),
            backoff=context.state.backoffs.get(uid, PoolBackoff()),
            demand=context.state.demands.get(uid),
            claims=context.state.claims[key],
            tally=context.state.tallies.get(key, Tally()),
            neighbours=context.line(key.namespace).neighbours(key),
        )
        return plan_pool(observed, context.settings, now)

    def _record_pool(self, plan: PoolPlan) -> None:
        """Remember how a pool's sandboxes did, what it has, and what it gave up."""
        metadata, state = plan.pool.metadata, self._context.state
        line = self._context.line(metadata.namespace)
        state.backoffs[metadata.uid] = plan.backoff
        key = Key(resources.POOLS.kind, metadata.namespace, metadata.name)
        state.claims[key] -= plan.claims
        if key in state.tallies:  # what was claimed meanwhile is for the next status
            warm, cold = state.tallies[key]
            state.tallies[key] = Tally(warm - plan.tally.warm, cold - plan.tally.cold)
        if plan.demand is not None:
            state.demands[metadata.uid] = plan.demand
        else:
            state.demands.pop(metadata.uid, None)
        self._context.metrics.set_pool(metadata.namespace, metadata.name, wanted=plan.wanted, ready=plan.ready)
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
            case Resize():
                return await self._resizer.resize(action)
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
            owner = self._store.sandbox(key.namespace, labels.get(names.LABEL_SANDBOX, ""))
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
                    before = self._store.sandbox(*key[1:]) if resource is resources.SANDBOXES else None
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
            record_status(self._context, before)
        return True

    async def _look_again(self, resource: resources.Resource, key: Key) -> bool:
        """Take in an object that was claimed, used or made anew since it was seen: nothing is taken from it unseen."""
        self._dispatcher.saw(resource, await self._cluster.get(resource, key.namespace, key.name))
        return False


def _suffixes(count: int) -> tuple[str, ...]:
    """Return so many endings of names; not by secrets.choice: many are drawn for each event of a pool."""
    text = secrets.token_bytes(_SUFFIX * count).translate(_LETTERS).decode()
    return tuple(text[at : at + _SUFFIX] for at in range(0, len(text), _SUFFIX))


def _has_to_compare(observed: ObservedSandbox) -> bool:
    """Return whether the pod has reported which kernel it sees, and nobody has compared that with its node's."""
    pod, template, status = observed.pod, observed.template, observed.sandbox.status
    if status.start_time is not None and is_true(status.conditions, ConditionType.KERNEL_ISOLATED):
        return False
    wanted = template is not None and template.spec.runtime_class_name is not None
    return wanted and pod is not None and pod.kernel != "" and observed.kernel is None
