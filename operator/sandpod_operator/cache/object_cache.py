"""The operator's cache of the objects in its namespaces, from watch events, answers to writes and full lists.

Since every answer to a write goes in at once, the operator sees its own writes and never creates an object twice for
want of an event.

What there can be ten thousand of, and what is rarely looked at, is kept as text: a parsed pod or Sandbox takes some
12 KB, its text a tenth of that, and parsing it again takes less than a tenth of a millisecond.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from sandpod_api import names
from sandpod_api.types import Sandbox, SandboxPool, SandboxTemplate
from sandpod_kube import resources
from sandpod_kube.object_cache import Listing, ObjectCache
from sandpod_kube.resources import Key, Resource, key_of
from sandpod_operator.model.pod import Pod

Parsed = Sandbox | SandboxPool | SandboxTemplate | Pod | dict[str, Any]
_T = TypeVar("_T", Sandbox, SandboxPool, SandboxTemplate, Pod, dict[str, Any])

_TYPES: Final[dict[str, type[Sandbox | SandboxPool | SandboxTemplate | Pod]]] = {
    resources.SANDBOXES.kind: Sandbox,
    resources.POOLS.kind: SandboxPool,
    resources.TEMPLATES.kind: SandboxTemplate,
    resources.PODS.kind: Pod,
}


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of an object, with what is asked of it often; the rest is empty for all but Sandboxes."""

    value: Parsed | bytes  # or its text
    pool: str = ""  # that an unclaimed Sandbox is counted in
    claimed: bool = False
    template: str = ""  # its name
    open: bool = False  # whether it wants a network profile

    @classmethod
    def of(cls, resource: Resource, manifest: dict[str, Any]) -> "Kept":
        """Parse an object. Unclaimed Sandboxes stay parsed: a pool looks at all of its own."""
        kind = _TYPES.get(resource.kind)
        if kind is None:
            return cls(manifest)
        parsed = kind.model_validate(manifest)
        if isinstance(parsed, Sandbox):
            spec, claimed = parsed.spec, parsed.spec.claim is not None
            pool = "" if claimed else parsed.metadata.labels.get(names.LABEL_POOL, "")
            is_open = spec.network != names.NETWORK_NONE
            return cls(_pack(parsed) if claimed else parsed, pool, claimed, spec.template_ref.name, is_open)
        return cls(_pack(parsed) if isinstance(parsed, Pod) else parsed)


def _pack(parsed: Sandbox | Pod) -> bytes:
    # By name: what is nested in a pod is not in the model.
    return parsed.model_dump_json(exclude_unset=True).encode()


class Store:
    """Objects by kind, namespace and name."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        # Gets namespace and pool of each warm Sandbox that is seen to be claimed: once, whoever says so, be it a watch,
        # an answer or a full list.
        self.on_claim: Callable[[str, str], None] = lambda _namespace, _pool: None
        self._cache = ObjectCache[Kept](self._changed)
        self._members: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self.remove = self._cache.remove
        self.uid_of = self._cache.uid_of
        # Each returns the object of a namespace and a name, if there is one; a policy as the API server gave it.
        self.sandbox = partial(self._get, Sandbox, resources.SANDBOXES)
        self.pod = partial(self._get, Pod, resources.PODS)
        self.template = partial(self._get, SandboxTemplate, resources.TEMPLATES)
        self.pool = partial(self._get, SandboxPool, resources.POOLS)
        self.policy = partial(self._get, dict, resources.POLICIES)
        # Each returns all of a namespace.
        self.pools = partial(self._all, SandboxPool, resources.POOLS)
        self.policies = partial(self._all, dict, resources.POLICIES)

    def put(self, resource: Resource, manifest: dict[str, Any]) -> bool:
        """Take in an object, and return whether it is news. Raises ValueError: it is not what its kind says."""
        return self._cache.put(key_of(resource, manifest), manifest["metadata"], partial(Kept.of, resource, manifest))

    async def read(self, resource: Resource, namespace: str, objects: AsyncIterator[dict[str, Any]]) -> Listing[Kept]:
        """Take in a full list of one kind in one namespace, and return what has changed by it."""
        with self._cache.listing(resource.kind, namespace) as listing:
            async for manifest in objects:
                key = key_of(resource, manifest)
                listing.put(key, manifest["metadata"], partial(Kept.of, resource, manifest))
        return listing

    def keys(self, resource: Resource, namespace: str | None = None) -> list[Key]:
        """Return the keys of all objects of a kind, or of those in one namespace."""
        return [key for key, _ in self._cache.items(resource.kind) if namespace in {None, key.namespace}]

    def uids(self, resource: Resource) -> set[str]:
        """Return the uids of all objects of a kind."""
        return set(self._cache.uids(resource.kind).values())

    def pool_of(self, key: Key) -> str:
        """Return the pool that an unclaimed Sandbox is counted in; empty where there is none."""
        kept = self._cache.get(key)
        return kept.pool if kept is not None else ""

    def members(self, namespace: str, pool: str) -> list[Sandbox]:
        """Return the unclaimed Sandboxes that carry a pool's label."""
        return [found for name in self._members.get((namespace, pool), ()) if (found := self.sandbox(namespace, name))]

    def count_members(self, namespace: str, pool: str) -> int:
        """Return how many unclaimed Sandboxes carry a pool's label."""
        return len(self._members.get((namespace, pool), ()))

    def users(self, namespace: str, template: str) -> Iterator[Key]:
        """Return the Sandboxes for which a change of a template matters: a pod stays as it is, but for its network."""
        for key, kept in self._cache.items(resources.SANDBOXES.kind):
            if (key.namespace, kept.template) == (namespace, template):
                has_pod = self._cache.get(key._replace(kind=resources.PODS.kind)) is not None
                if kept.open or not has_pod:
                    yield key

    def orphaned_pods(self) -> Iterator[Pod]:
        """Return the pods whose Sandbox is not known."""
        for key in self.keys(resources.PODS):
            orphaned = self._cache.get(key._replace(kind=resources.SANDBOXES.kind)) is None
            if orphaned and (pod := self.pod(key.namespace, key.name)) is not None:
                yield pod

    def _get(self, kind: type[_T], resource: Resource, namespace: str, name: str) -> _T | None:
        kept = self._cache.get(Key(resource.kind, namespace, name))
        value = kept.value if kept is not None else None
        found = _TYPES[resource.kind].model_validate_json(value) if isinstance(value, bytes) else value
        return found if isinstance(found, kind) else None

    def _all(self, kind: type[_T], resource: Resource, namespace: str) -> Iterator[_T]:
        for key in self.keys(resource, namespace):
            if (found := self._get(kind, resource, namespace, key.name)) is not None:
                yield found

    def _changed(self, key: Key, old: Kept | None, new: Kept | None) -> None:
        if old is not None and old.pool:
            members = self._members[key.namespace, old.pool]
            members.discard(key.name)
            if not members:
                del self._members[key.namespace, old.pool]
            # Anybody may write the label of a pool that does not exist.
            if new is not None and new.claimed and self.pool(key.namespace, old.pool) is not None:
                self.on_claim(key.namespace, old.pool)
        if new is not None and new.pool:
            self._members[key.namespace, new.pool].add(key.name)
