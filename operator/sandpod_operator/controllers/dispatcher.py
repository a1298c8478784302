"""Takes in what is seen and wakes whoever depends on it; full lists repair what a watch has lost."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

from sandpod_api import names
from sandpod_kube import resources
from sandpod_kube.resources import Key, Resource, key_of
from sandpod_operator.controllers.context import Context

_log = logging.getLogger(__name__)


class Dispatcher:
    """Whom each object wakes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store, self._queue = context.store, context.queue
        self._listed: set[tuple[Resource, str]] = set()

    def saw(self, resource: Resource, manifest: dict[str, Any]) -> None:
        """Take in an object that was watched, listed or answered, and wake whoever depends on it."""
        key = key_of(resource, manifest)
        # Those who use a template are the same before and after it has changed.
        before = set() if resource is resources.TEMPLATES else set(self._dependents(key))
        had_ended = self._has_ended(key)
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
                self._context.line(key.namespace).pod_left()

    def _has_ended(self, key: Key) -> bool:
        """Return whether it is a pod that a quota no longer counts, as far as anybody waits for that."""
        if key.kind != resources.PODS.kind or self._context.line(key.namespace).is_empty():
            return False
        pod = self._store.pod(key.namespace, key.name)
        return pod is not None and pod.ended

    def lost(self, key: Key, uid: str = "") -> None:
        """Forget an object that is gone, and wake whoever depended on it."""
        dependents, known = set(self._dependents(key)), self._store.uid_of(key)
        self._store.remove(key, uid)
        self._queue.forget(key)
        for dependent in dependents:
            self._queue.add(dependent)
        if key.kind == resources.SANDBOXES.kind and known and not self._store.uid_of(key):
            self._context.line(key.namespace).gone(known)
        elif key.kind == resources.PODS.kind:
            self._context.line(key.namespace).pod_left()

    def _dependents(self, key: Key) -> Iterator[Key]:
        """Return whose plan an object is part of, by what the store knows of it."""
        namespace, name = key.namespace, key.name
        if key.kind == resources.PODS.kind:
            yield Key(resources.SANDBOXES.kind, namespace, name)
        elif key.kind == resources.POLICIES.kind:
            yield Key(resources.NAMESPACE, namespace, "")
            labels = (self._store.policy(namespace, name) or {"metadata": {}})["metadata"].get("labels", {})
            if names.LABEL_TEMPLATE in labels:
                yield Key(resources.TEMPLATES.kind, namespace, labels[names.LABEL_TEMPLATE])
        else:
            yield key
        if key.kind == resources.SANDBOXES.kind and (pool := self._store.pool_of(key)):
            # Once claimed it has left its pool, whose work must not grow with what is held.
            yield Key(resources.POOLS.kind, namespace, pool)
        elif key.kind == resources.TEMPLATES.kind:
            for each in self._store.pools(namespace):
                if each.spec.template_ref.name == name:
                    yield Key(resources.POOLS.kind, namespace, each.metadata.name)
            yield from self._store.users(namespace, name)

    async def resync(self) -> None:
        """List everything anew, repair the store where a watch lost something, and look at every object again."""
        for namespace in self._context.settings.namespaces:
            self._queue.add(Key(resources.NAMESPACE, namespace, ""))
            for resource in resources.WATCHED:
                if resource is not resources.LEASES:
                    await self.list_anew(resource, namespace)
        self._context.state.trim(*map(self._store.uids, (resources.SANDBOXES, resources.PODS, resources.POOLS)))

    async def list_anew(self, resource: Resource, namespace: str) -> None:
        """List all objects of one kind in one namespace, and look at them again.

        Raises ClusterError: the list failed; what is not in it so far stays known.
        """
        listing = await self._store.read(resource, namespace, self._context.cluster.pages(resource, namespace))
        if listing.bad:
            _log.warning("%d %s in %s can't be read and are left alone", listing.bad, resource.plural, namespace)
        if (resource, namespace) in self._listed:
            self._context.metrics.watch_missed.labels(resource.kind).inc(len(listing.changed))
        self._listed.add((resource, namespace))
        for key in listing.changed | set(self._store.keys(resource, namespace)):
            # All there is is looked at; whoever depends on it is part of that, unless this is news.
            for dependent in (key, *(self._dependents(key) if key in listing.changed else ())):
                if dependent.kind not in {resources.PODS.kind, resources.POLICIES.kind}:
                    self._queue.add(dependent)
            await asyncio.sleep(0)  # Thousands of objects must not hold up the heartbeat.
