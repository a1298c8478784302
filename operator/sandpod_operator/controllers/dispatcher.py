"""Takes in what is seen and wakes whoever depends on it; full lists, and the sweep of orphaned pods.

It decides only who has to look again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

from sandpod_api import names
from sandpod_kube import resources
from sandpod_kube.client import KubeClient
from sandpod_kube.errors import NotFoundError
from sandpod_kube.resources import Key, Resource, key_of
from sandpod_operator.cache.object_cache import Store
from sandpod_operator.controllers import observer
from sandpod_operator.controllers.state import Notes
from sandpod_operator.controllers.workqueue import WorkQueue
from sandpod_operator.metrics import Metrics
from sandpod_operator.quota.admission import Admission
from sandpod_operator.settings import OperatorSettings

_log = logging.getLogger(__name__)

_SWEEPERS: Final = 16  # requests at once; the API server shares its turns among all clients
_FEW: Final = 100  # orphans whose Sandboxes are asked for one by one; for more, all there are is listed


class Controller:
    """The store, the queue, and who wakes whom."""

    def __init__(
        self,
        *,
        cluster: KubeClient,
        store: Store,
        notes: Notes,
        admission: Admission,
        queue: WorkQueue,
        metrics: Metrics,
        settings: OperatorSettings,
        clock: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._notes = notes
        self._admission = admission
        self._queue = queue
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._suspects: dict[Key, datetime] = {}
        self._listed: set[tuple[Resource, str]] = set()

    def saw(self, resource: Resource, manifest: dict[str, Any]) -> None:
        """Take in an object that was watched, listed or answered, and wake whoever depends on it."""
        key = key_of(resource, manifest)
        before, had_ended = set(self._dependents(key)), self._has_ended(key)
        try:
            news = self._store.put(resource, manifest)
        except ValueError as error:
            # The API server validates by the same types: only an object older than its CRD is like that.
            _log.warning("%s %s/%s can't be read and is left alone: %s", *key, str(error)[:500])
            return
        if news:
            for dependent in before | set(self._dependents(key)):
                self._queue.add(dependent)
            if not had_ended and self._has_ended(key):
                self._admission.pod_left(key.namespace)

    def _has_ended(self, key: Key) -> bool:
        """Tell whether it is a pod that a quota counts no more, as far as anybody waits for that."""
        if key.kind != resources.PODS.kind or not self._admission.line(key.namespace).queue:
            return False
        pod = self._store.pod(key.namespace, key.name)
        return pod is not None and pod.ended

    def lost(self, key: Key, uid: str = "") -> None:
        """Forget an object that is gone, and wake whoever depended on it."""
        dependents = set(self._dependents(key))
        known = self._store.uid_of(key)
        self._store.remove(key, uid)
        self._queue.forget(key)
        for dependent in dependents:
            self._queue.add(dependent)
        if key.kind == resources.SANDBOXES.kind and known and not self._store.uid_of(key):
            self._admission.gone(key.namespace, known)
        elif key.kind == resources.PODS.kind:
            self._admission.pod_left(key.namespace)

    def _dependents(self, key: Key) -> Iterator[Key]:
        """Return whose plan an object is part of, by what the store knows of it."""
        namespace, name = key.namespace, key.name
        if key.kind == resources.SANDBOXES.kind:
            yield key
            # Once claimed it has left its pool, whose work must not grow with what is held.
            if pool := self._store.pool_of(namespace, name):
                yield Key(resources.POOLS.kind, namespace, pool)
        elif key.kind == resources.PODS.kind:
            yield Key(resources.SANDBOXES.kind, namespace, name)
        elif key.kind == resources.TEMPLATES.kind:
            yield key
            yield from self._users(namespace, name)
        elif key.kind == resources.POLICIES.kind:
            yield from self._policy_owners(namespace, name)
        elif key.kind == resources.POOLS.kind:
            yield key

    def _users(self, namespace: str, template: str) -> Iterator[Key]:
        for pool in self._store.all_pools(namespace):
            if pool.spec.template_ref.name == template:
                yield Key(resources.POOLS.kind, namespace, pool.metadata.name)
        for sandbox in self._store.all_sandboxes(namespace):
            # Those that have a pod keep it as it is, but for its network profile.
            settled = sandbox.spec.network == names.NETWORK_NONE and self._store.pod(namespace, sandbox.metadata.name)
            if sandbox.spec.template_ref.name == template and not settled:
                yield Key(resources.SANDBOXES.kind, namespace, sandbox.metadata.name)

    def _policy_owners(self, namespace: str, name: str) -> Iterator[Key]:
        yield Key(resources.NAMESPACE, namespace, "")
        policy = self._store.policy(namespace, name)
        template = policy["metadata"].get("labels", {}).get(names.LABEL_TEMPLATE) if policy is not None else None
        if template is not None:
            yield Key(resources.TEMPLATES.kind, namespace, template)

    async def resync(self) -> None:
        """List everything anew, repair the store where a watch lost something, and look at every object again."""
        for namespace in self._settings.namespaces:
            self._queue.add(Key(resources.NAMESPACE, namespace, ""))
            for resource in resources.WATCHED:
                if resource is not resources.LEASES:
                    await self._resync(resource, namespace)
        self._trim_notes()

    async def _resync(self, resource: Resource, namespace: str) -> None:
        first = (resource, namespace) not in self._listed
        with self._store.listing(resource, namespace) as listing:
            async for manifest in self._cluster.pages(resource, namespace):
                listing.put(manifest)
        self._listed.add((resource, namespace))
        if listing.bad:
            _log.warning("%d %s in %s can't be read and are left alone", listing.bad, resource.plural, namespace)
        if not first:
            self._metrics.watch_missed.labels(resource.kind).inc(len(listing.changed))
        for key in listing.changed | {k for k in self._store.keys(resource) if k.namespace == namespace}:
            # All there is is looked at; whoever depends on it is part of that, unless this is news.
            for dependent in (key, *(self._dependents(key) if key in listing.changed else ())):
                if dependent.kind not in {resources.PODS.kind, resources.POLICIES.kind}:
                    self._queue.add(dependent)
            await asyncio.sleep(0)  # Thousands of objects must not hold up the heartbeat.

    def _trim_notes(self) -> None:
        self._notes.trim(
            sandboxes=self._store.uids(resources.SANDBOXES),
            pods=self._store.uids(resources.PODS),
            pools=self._store.uids(resources.POOLS),
        )

    async def sweep(self) -> None:
        """Delete pods that have long been without a Sandbox, if the API server says the same.

        Owner references do it already; this is for those that lost theirs.
        """
        now = self._clock()
        found = observer.orphans(self._store)
        self._suspects = {key: self._suspects.get(key, now) for key in found}
        grace = self._settings.orphan_grace
        due = [key for key, since in self._suspects.items() if (now - since).total_seconds() >= grace]
        # A lost node or a broken garbage collector leaves many at once, and one after the other would take minutes.
        many = len(due) > _FEW
        if many:
            for namespace in {key.namespace for key in due}:
                await self._resync(resources.SANDBOXES, namespace)
        slots = asyncio.Semaphore(_SWEEPERS)
        doing = (self._take_orphan(key, slots, look=not many) for key in due)
        done = await asyncio.gather(*doing, return_exceptions=True)
        for error in filter(None, done):
            raise error

    async def _take_orphan(self, key: Key, slots: asyncio.Semaphore, *, look: bool) -> None:
        async with slots:
            uid = self._store.uid_of(key)
            if not uid or self._store.sandbox(key.namespace, key.name) is not None:
                return
            if not look or await self._has_no_sandbox(key):
                await self._delete_orphan(key, uid)

    async def _has_no_sandbox(self, key: Key) -> bool:
        try:
            self.saw(resources.SANDBOXES, await self._cluster.get(resources.SANDBOXES, key.namespace, key.name))
        except NotFoundError:
            return True
        return False

    async def _delete_orphan(self, key: Key, uid: str) -> None:
        _log.info("pod %s/%s has no Sandbox any more: deleting it", key.namespace, key.name)
        try:
            await self._cluster.delete(resources.PODS, key.namespace, key.name, {"uid": uid})
        except NotFoundError:
            self.lost(key, uid)
