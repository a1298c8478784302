"""Carries a plan out, and says what the answers of the API server mean for what is known."""

import asyncio

from sandpod_api import names
from sandpod_kube import resources
from sandpod_kube.errors import ConflictError, DeniedError, NotFoundError
from sandpod_kube.resources import Key, key_of
from sandpod_operator.controllers.context import QUOTA, Context
from sandpod_operator.controllers.dispatcher import Dispatcher
from sandpod_operator.controllers.metrics_recorder import record_status
from sandpod_operator.model.actions import Action, Apply, Create, Delete, Emit, Patch, PatchStatus, Plan
from sandpod_operator.status.failures import clean


class Applier:
    """Writes of one operator. Answers are as good as watch events, and earlier: they go to the dispatcher."""

    def __init__(self, context: Context, dispatcher: Dispatcher) -> None:
        self._context = context
        self._cluster = context.cluster
        self._dispatcher = dispatcher

    async def apply(self, plan: Plan) -> bool:
        """Do what the plan says, in order.

        Returns:
            False when an answer changed what is seen, so that the rest of the plan is void.

        Raises:
            ClusterError: The API server did not answer, or refused something that should work.
        """
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
            case PatchStatus():
                return await self._patch_status(action)
            case Patch():
                return await self._patch(action)
            case Delete():
                return await self._delete(action)
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
                self._context.admission.refused(owner, clean(error.message))
            else:
                now, settings = self._context.clock(), self._context.settings
                self._context.state.refused(owner.metadata.uid, error, now, settings)
            return False
        owner_uid = str(action.manifest["metadata"]["ownerReferences"][0]["uid"])
        self._context.state.refusals.pop(owner_uid, None)
        self._dispatcher.saw(action.resource, made)
        if action.resource is resources.PODS:
            self._context.admission.let_in(key.namespace, owner_uid)
        return True

    async def _patch_status(self, action: PatchStatus) -> bool:
        key = action.key
        before = self._context.store.sandbox(key.namespace, key.name)
        try:
            after = await self._cluster.patch_status(action.resource, key.namespace, key.name, action.status)
        except NotFoundError:
            self._dispatcher.lost(key)
            return False
        self._dispatcher.saw(action.resource, after)
        if action.resource is resources.SANDBOXES and before is not None:
            record_status(self._context.metrics, before, self._context.store)
        return True

    async def _patch(self, action: Patch) -> bool:
        key = action.key
        labels = {"labels": action.labels} if action.labels else {}
        spec = {"spec": action.spec} if action.spec else {}
        change = {"metadata": {"resourceVersion": action.metadata.resource_version, **labels}, **spec}
        try:
            after = await self._cluster.patch(action.resource, key.namespace, key.name, change)
        except NotFoundError:
            self._dispatcher.lost(key)
            return False
        except ConflictError:
            return await self._look_again(action.resource, key)
        self._dispatcher.saw(action.resource, after)
        return True

    async def _delete(self, action: Delete) -> bool:
        key, metadata = action.key, action.metadata
        version = {"resourceVersion": metadata.resource_version} if action.unchanged else {}
        preconditions = {"uid": metadata.uid, **version}
        try:
            answer = await self._cluster.delete(action.resource, key.namespace, key.name, preconditions)
        except NotFoundError:
            self._dispatcher.lost(key, metadata.uid)
            return True
        except ConflictError:
            return await self._look_again(action.resource, key)
        if answer.get("kind") == action.resource.kind:
            self._dispatcher.saw(action.resource, answer)  # It is still going.
        elif action.resource is not resources.PODS:  # Quotas count a pod until its event has come.
            self._dispatcher.lost(key, metadata.uid)
        return True

    async def _look_again(self, resource: resources.Resource, key: Key) -> bool:
        """Take in an object that was claimed, used or made anew since it was seen: nothing is taken from it unseen."""
        self._dispatcher.saw(resource, await self._cluster.get(resource, key.namespace, key.name))
        return False
