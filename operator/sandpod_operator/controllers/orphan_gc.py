"""Deletes pods that have long been without a Sandbox. Owner references do it already; this is for those without."""

import asyncio
import logging
from contextlib import suppress
from datetime import datetime
from typing import Final

from sandpod_kube import resources
from sandpod_kube.errors import NotFoundError
from sandpod_kube.resources import Key
from sandpod_operator.controllers.context import Context
from sandpod_operator.controllers.dispatcher import Dispatcher

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 16  # requests; the API server shares its attention among all clients
_FEW: Final = 100  # orphans whose Sandboxes are asked for one by one; for more, all there are is listed


class OrphanCollector:
    """Pods that look like orphans, and since when."""

    def __init__(self, context: Context, dispatcher: Dispatcher) -> None:
        self._context, self._dispatcher = context, dispatcher
        self._suspects = dict[Key, datetime]()

    async def sweep(self) -> None:
        """Delete the pods that have been without a Sandbox for long enough, if the API server says the same."""
        now = self._context.clock()
        pods = (pod for pod in self._context.store.orphaned_pods() if not pod.deleting)
        keys = (Key(resources.PODS.kind, pod.metadata.namespace, pod.metadata.name) for pod in pods)
        self._suspects = {key: self._suspects.get(key, now) for key in keys}
        grace = self._context.settings.orphan_grace
        due = [key for key, since in self._suspects.items() if (now - since).total_seconds() >= grace]
        # A lost node or a broken garbage collector leaves many at once, and one after the other would take minutes.
        many = len(due) > _FEW
        if many:
            for namespace in {key.namespace for key in due}:
                await self._dispatcher.list_anew(resources.SANDBOXES, namespace)
        slots = asyncio.Semaphore(_AT_ONCE)
        done = await asyncio.gather(*(self._collect(key, slots, ask=not many) for key in due), return_exceptions=True)
        for error in filter(None, done):
            raise error

    async def _collect(self, key: Key, slots: asyncio.Semaphore, *, ask: bool) -> None:
        store, cluster = self._context.store, self._context.cluster
        async with slots:
            uid = store.uid_of(key)
            if not uid or store.sandbox(key.namespace, key.name) is not None:
                return
            if ask:
                with suppress(NotFoundError):
                    found = await cluster.get(resources.SANDBOXES, key.namespace, key.name)
                    self._dispatcher.saw(resources.SANDBOXES, found)
                    return
            _log.info("pod %s/%s has no Sandbox any more: deleting it", key.namespace, key.name)
            try:
                await cluster.delete(resources.PODS, key.namespace, key.name, {"uid": uid})
            except NotFoundError:
                self._dispatcher.lost(key, uid)
