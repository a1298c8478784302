"""The operator's picture of its namespaces: parsed objects, from watch events, answers to writes and full lists.

Called by `controller.py`, which feeds it, and by `observe.py`, which reads it. Since every answer to a write goes in
at once, the operator sees its own writes and never makes a thing twice for want of an event. It talks to nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_api.types import ObjectMeta, Sandbox, SandboxPool, SandboxTemplate
from sandpod_operator import resources
from sandpod_operator.pods import Pod
from sandpod_operator.resources import Key, Resource, key_of

Parsed = Sandbox | SandboxPool | SandboxTemplate | Pod | dict[str, Any]

_PARSERS: Final[dict[str, Callable[[Any], Parsed]]] = {
    resources.SANDBOXES.kind: Sandbox.model_validate,
    resources.POOLS.kind: SandboxPool.model_validate,
    resources.TEMPLATES.kind: SandboxTemplate.model_validate,
    resources.PODS.kind: Pod.model_validate,
}


class Store:
    """Objects by kind, namespace and name."""

    def __init__(self) -> None:
        self._objects: dict[Key, Parsed] = {}
        self._members: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def put(self, resource: Resource, manifest: dict[str, Any]) -> bool:
        """Take in an object, unless a newer state of it is known already.

        Args:
            resource: Its kind.
            manifest: The object as the API server gave it.

        Returns:
            Whether it is news.

        Raises:
            ValueError: It is not what its kind says (pydantic's ValidationError).
        """
        key = key_of(resource, manifest)
        known = self._objects.get(key)
        if known is not None and not _newer(manifest["metadata"], known):
            return False
        parsed = _PARSERS.get(resource.kind, dict)(manifest)
        self._forget_member(key)
        self._objects[key] = parsed
        if isinstance(parsed, Sandbox) and (pool := parsed.metadata.labels.get(names.LABEL_POOL)):
            self._members[key.namespace, pool].add(key.name)
        return True

    def remove(self, key: Key, uid: str = "") -> None:
        """Forget an object that is gone.

        Args:
            key: Which.
            uid: Its uid, so that a late word of an earlier one does not remove its successor; empty for any.
        """
        known = self._objects.get(key)
        if known is None or (uid and metadata_of(known).uid != uid):
            return
        self._forget_member(key)
        del self._objects[key]

    def replace(self, resource: Resource, namespace: str, manifests: Iterable[dict[str, Any]]) -> tuple[set[Key], int]:
        """Take in a full list of one kind in one namespace: what it lacks is gone.

        Objects that are in the store with a newer version than in the list stay: the list is older than they are.

        Returns:
            The keys that changed or went, and how many objects could not be parsed.
        """
        changed: set[Key] = set()
        listed: set[Key] = set()
        bad = 0
        for manifest in manifests:
            key = key_of(resource, manifest)
            listed.add(key)
            try:
                if self.put(resource, manifest):
                    changed.add(key)
            except ValueError:
                bad += 1
        return changed | self._drop_unlisted(resource, namespace, listed), bad

    def _drop_unlisted(self, resource: Resource, namespace: str, listed: set[Key]) -> set[Key]:
        known = {k for k in self._objects if k.kind == resource.kind and k.namespace == namespace}
        gone = known - listed
        for key in gone:
            self.remove(key)
        return gone

    def keys(self, resource: Resource) -> list[Key]:
        """Return the keys of all objects of a kind."""
        return [key for key in self._objects if key.kind == resource.kind]

    def sandbox(self, namespace: str, name: str) -> Sandbox | None:
        """Return a Sandbox."""
        found = self._objects.get(Key(resources.SANDBOXES.kind, namespace, name))
        return found if isinstance(found, Sandbox) else None

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Return a pod."""
        found = self._objects.get(Key(resources.PODS.kind, namespace, name))
        return found if isinstance(found, Pod) else None

    def template(self, namespace: str, name: str) -> SandboxTemplate | None:
        """Return a template."""
        found = self._objects.get(Key(resources.TEMPLATES.kind, namespace, name))
        return found if isinstance(found, SandboxTemplate) else None

    def pool(self, namespace: str, name: str) -> SandboxPool | None:
        """Return a pool."""
        found = self._objects.get(Key(resources.POOLS.kind, namespace, name))
        return found if isinstance(found, SandboxPool) else None

    def policy(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a network policy as the API server gave it."""
        found = self._objects.get(Key(resources.POLICIES.kind, namespace, name))
        return found if isinstance(found, dict) else None

    def policies(self, namespace: str) -> Iterator[dict[str, Any]]:
        """Return the network policies of a namespace."""
        for key, found in self._objects.items():
            if key.kind == resources.POLICIES.kind and key.namespace == namespace and isinstance(found, dict):
                yield found

    def members(self, namespace: str, pool: str) -> list[Sandbox]:
        """Return the Sandboxes that carry a pool's label, claimed ones included."""
        found = (self.sandbox(namespace, name) for name in self._members.get((namespace, pool), ()))
        return [sandbox for sandbox in found if sandbox is not None]

    def all_pods(self) -> Iterator[Pod]:
        """Return all pods."""
        return (found for found in self._objects.values() if isinstance(found, Pod))

    def all_sandboxes(self, namespace: str) -> Iterator[Sandbox]:
        """Return all Sandboxes of a namespace."""
        for key, found in self._objects.items():
            if key.namespace == namespace and isinstance(found, Sandbox):
                yield found

    def all_pools(self, namespace: str) -> Iterator[SandboxPool]:
        """Return all pools of a namespace."""
        for key, found in self._objects.items():
            if key.namespace == namespace and isinstance(found, SandboxPool):
                yield found

    def _forget_member(self, key: Key) -> None:
        known = self._objects.get(key)
        if isinstance(known, Sandbox) and (pool := known.metadata.labels.get(names.LABEL_POOL)):
            members = self._members[key.namespace, pool]
            members.discard(key.name)
            if not members:
                del self._members[key.namespace, pool]


def metadata_of(parsed: Parsed) -> ObjectMeta:
    """Return the metadata of an object of the store."""
    return ObjectMeta.model_validate(parsed["metadata"]) if isinstance(parsed, dict) else parsed.metadata


def _newer(metadata: dict[str, Any], known: Parsed) -> bool:
    """Compare versions as numbers, which Kubernetes allows for objects of one kind since 1.35 and etcd always did."""
    before = metadata_of(known)
    if metadata.get("uid", "") != before.uid:
        return str(metadata.get("creationTimestamp", "")) >= _created(before)
    return int(metadata.get("resourceVersion") or 0) > int(before.resource_version or 0)


def _created(metadata: ObjectMeta) -> str:
    return rfc3339(metadata.creation_timestamp) if metadata.creation_timestamp is not None else ""
