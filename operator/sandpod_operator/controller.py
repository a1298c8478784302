"""Joins the parts at run time: what is seen goes into the store and wakes whoever depends on it; sweep and resync.

Called by `handlers.py` with watch events, by `reconcile.py` with answers, by `supervisor.py` with time. It decides only
who has to look again; what is done then is the plans' business.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Protocol

from sandpod_api import names
from sandpod_operator import observe, resources
from sandpod_operator.errors import NotFoundError
from sandpod_operator.metrics import Metrics
from sandpod_operator.notes import Notes
from sandpod_operator.queue import WorkQueue
from sandpod_operator.resources import Key, Resource, key_of
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.shares import to_give
from sandpod_operator.store import Store

_log = logging.getLogger(__name__)


class ClusterReads(Protocol):
    """What sweep and resync ask of the cluster; `cluster.Cluster` is the real one."""

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]: ...  # noqa: D102
    async def list(self, resource: Resource, namespace: str) -> list[dict[str, Any]]: ...  # noqa: D102
    async def delete(  # noqa: D102
        self, resource: Resource, namespace: str, name: str, preconditions: dict[str, str]
    ) -> dict[str, Any]: ...


class Controller:
    """The store, the queue, and who wakes whom."""

    def __init__(
        self,
        *,
        cluster: ClusterReads,
        store: Store,
        notes: Notes,
        queue: WorkQueue,
        metrics: Metrics,
        settings: OperatorSettings,
        clock: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._notes = notes
        self._queue = queue
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._suspects: dict[Key, datetime] = {}

    def saw(self, resource: Resource, manifest: dict[str, Any]) -> None:
        """Take in an object that was watched, listed or answered, and wake whoever depends on it."""
        key = key_of(resource, manifest)
        before = set(self._dependents(key))
        try:
            news = self._store.put(resource, manifest)
        except ValueError as error:
            # The API server validates by the same types: only an object older than its CRD is like that.
            _log.warning("%s %s/%s can't be read and is left alone: %s", *key, str(error)[:500])
            return
        if news:
            for dependent in before | set(self._dependents(key)):
                self._queue.add(dependent)

    def lost(self, key: Key, uid: str = "") -> None:
        """Forget an object that is gone, and wake whoever depended on it."""
        dependents = set(self._dependents(key))
        sandbox = self._store.sandbox(key.namespace, key.name) if key.kind == resources.SANDBOXES.kind else None
        self._store.remove(key, uid)
        self._queue.forget(key)
        for dependent in dependents:
            self._queue.add(dependent)
        if sandbox is not None and self._store.sandbox(key.namespace, key.name) is None:
            self._notes.forget(sandbox.metadata.uid)
            self._notes.saw_claimed(key, None)
            self.offer(key.namespace)
        if key.kind == resources.PODS.kind:
            self._notes.pod_left(key.namespace)
            self.offer(key.namespace)

    def _dependents(self, key: Key) -> Iterator[Key]:
        """Return whose plan an object is part of, by what the store knows of it."""
        namespace, name = key.namespace, key.name
        if key.kind == resources.SANDBOXES.kind:
            yield key
            yield from self._pool_of(namespace, name)
        elif key.kind == resources.PODS.kind:
            yield Key(resources.SANDBOXES.kind, namespace, name)
            if self._store.pod(namespace, name) is None:
                yield from self._pool_of(namespace, name)  # it makes more once the first have a pod
        elif key.kind == resources.TEMPLATES.kind:
            yield key
            yield from self._users(namespace, name)
        elif key.kind == resources.POLICIES.kind:
            yield from self._policy_owners(namespace, name)
        elif key.kind == resources.POOLS.kind:
            yield key

    def _pool_of(self, namespace: str, sandbox: str) -> Iterator[Key]:
        found = self._store.sandbox(namespace, sandbox)
        if found is not None and (pool := found.metadata.labels.get(names.LABEL_POOL)):
            yield Key(resources.POOLS.kind, namespace, pool)

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

    def offer(self, namespace: str, *, but: Key | None = None) -> None:
        """Wake whoever is next to try for a place in the quota, or has to give one up; see `shares.py`.

        Args:
            namespace: Whose quota.
            but: The pool that is being worked on, and knows.
        """
        others = self._notes.neighbours(namespace)
        claim, pool = others.next_claim(), others.next_pool()
        giving = to_give(others, self._notes.given, self._clock())
        if claim is not None:
            self._retry(claim.key)
        elif pool is not None and pool.refused is not None and others.tight:
            self._retry(pool.refused)
        if giving is not None and giving[0].key != but:
            self._queue.add(giving[0].key)
        for share in others.pools:
            next_one = pool is not None and share.key == pool.key
            concerned = share.unscheduled or (share.missing and (next_one or not others.tight))
            if concerned and share.key != but:
                self._queue.add(share.key)

    def _retry(self, key: Key) -> None:
        self._notes.retry(key, self._clock())
        self._queue.add(key)

    async def resync(self) -> None:
        """List everything anew, repair the store where a watch lost something, and look at every object again."""
        for namespace in self._settings.namespaces:
            self._queue.add(Key(resources.NAMESPACE, namespace, ""))
            for resource in resources.WATCHED:
                if resource is not resources.LEASES:
                    await self._resync(resource, namespace)
        self._trim_notes()

    async def _resync(self, resource: Resource, namespace: str) -> None:
        manifests = await self._cluster.list(resource, namespace)
        before = set(self._store.keys(resource))
        changed, bad = self._store.replace(resource, namespace, manifests)
        if bad:
            _log.warning("%d %s in %s can't be read and are left alone", bad, resource.plural, namespace)
        if before:
            self._metrics.watch_missed.labels(resource.kind).inc(len(changed))
        for key in changed | {k for k in self._store.keys(resource) if k.namespace == namespace}:
            for dependent in (key, *self._dependents(key)):
                if dependent.kind not in {resources.PODS.kind, resources.POLICIES.kind}:
                    self._queue.add(dependent)
            await asyncio.sleep(0)  # Thousands of objects must not hold up the heartbeat.

    def _trim_notes(self) -> None:
        spaces = self._settings.namespaces
        self._notes.trim(
            sandboxes={s.metadata.uid for n in spaces for s in self._store.all_sandboxes(n)},
            pods={pod.metadata.uid for pod in self._store.all_pods()},
            pools={p.metadata.uid for n in spaces for p in self._store.all_pools(n)},
        )

    async def sweep(self) -> None:
        """Delete pods that have long been without a Sandbox, if the API server says the same.

        Owner references do it already; this is for those that lost theirs.
        """
        now = self._clock()
        found = observe.orphans(self._store)
        self._suspects = {key: self._suspects.get(key, now) for key in found}
        for key, since in self._suspects.items():
            pod = self._store.pod(key.namespace, key.name)
            if pod is None or (now - since).total_seconds() < self._settings.orphan_grace:
                continue
            try:
                self.saw(resources.SANDBOXES, await self._cluster.get(resources.SANDBOXES, key.namespace, key.name))
            except NotFoundError:
                await self._delete_orphan(key, pod.metadata.uid)

    async def _delete_orphan(self, key: Key, uid: str) -> None:
        _log.info("pod %s/%s has no Sandbox any more: deleting it", key.namespace, key.name)
        try:
            await self._cluster.delete(resources.PODS, key.namespace, key.name, {"uid": uid})
        except NotFoundError:
            self.lost(key, uid)
