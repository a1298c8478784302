"""The operator's picture of its namespaces: parsed objects, from watch events, answers to writes and full lists.

Since every answer to a write goes in at once, the operator sees its own writes and never creates an object twice for
want of an event.

What there can be ten thousand of, and what is rarely looked at, is kept as text: a parsed pod or Sandbox takes some
12 KB, its text a tenth of that, and parsing it again takes less than a tenth of a millisecond.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from sandpod_api import names
from sandpod_api.types import Sandbox, SandboxPool, SandboxTemplate
from sandpod_kube import resources
from sandpod_kube.resources import Key, Resource, key_of
from sandpod_operator.model.pod import Pod

Parsed = Sandbox | SandboxPool | SandboxTemplate | Pod | dict[str, Any]
_T = TypeVar("_T", Sandbox, SandboxPool, SandboxTemplate, Pod, dict[str, Any])

_PARSERS: Final[dict[str, Callable[[Any], Parsed]]] = {
    resources.SANDBOXES.kind: Sandbox.model_validate,
    resources.POOLS.kind: SandboxPool.model_validate,
    resources.TEMPLATES.kind: SandboxTemplate.model_validate,
    resources.PODS.kind: Pod.model_validate,
}
_UNPACKERS: Final[dict[str, Callable[[bytes], Parsed]]] = {
    resources.SANDBOXES.kind: Sandbox.model_validate_json,
    resources.PODS.kind: Pod.model_validate_json,
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """An object, with what is asked of it often; `pool` is that of an unclaimed Sandbox."""

    uid: str
    version: int
    created: str
    pool: str
    value: Parsed | bytes


class Store:
    """Objects by kind, namespace and name."""

    def __init__(self, on_claim: Callable[[str, str], None] = lambda _namespace, _pool: None) -> None:
        """Keep nothing yet.

        Args:
            on_claim: Told the namespace and the pool once for each warm Sandbox that is seen to be claimed, whoever
                says so: a watch, an answer or a full list. What was claimed before the store knew it is not told.
        """
        self._on_claim = on_claim
        self._objects: defaultdict[str, dict[Key, _Entry]] = defaultdict(dict)
        self._members: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._listings: list[Listing] = []

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
        metadata = manifest["metadata"]
        known = self._objects[key.kind].get(key)
        if known is not None and not _newer(metadata, known):
            return False
        parsed = _PARSERS.get(resource.kind, dict)(manifest)
        self._forget_member(key)
        pool = _pool_of(parsed)
        self._objects[key.kind][key] = _Entry(
            uid=str(metadata.get("uid", "")),
            version=_version(metadata),
            created=_created(metadata),
            pool=pool,
            value=_pack(parsed),
        )
        if pool:
            self._members[key.namespace, pool].add(key.name)
        elif known is not None and self._left_pool(parsed, known):
            self._on_claim(key.namespace, known.pool)
        return True

    def remove(self, key: Key, uid: str = "") -> None:
        """Forget an object that is gone.

        Args:
            key: Which.
            uid: Its uid, so that a late word of an earlier one does not remove its successor; empty for any.
        """
        known = self._objects[key.kind].get(key)
        for listing in self._listings:
            listing.gone.add(uid or (known.uid if known is not None else ""))
        if known is None or (uid and known.uid != uid):
            return
        self._forget_member(key)
        del self._objects[key.kind][key]

    def listing(self, resource: Resource, namespace: str) -> "Listing":
        """Return what takes in a full list of one kind in one namespace; to be entered before the list is asked for."""
        return Listing(self, self._listings, resource, namespace)

    def keys(self, resource: Resource) -> list[Key]:
        """Return the keys of all objects of a kind."""
        return list(self._objects[resource.kind])

    def uids(self, resource: Resource) -> set[str]:
        """Return the uids of all objects of a kind."""
        return {entry.uid for entry in self._objects[resource.kind].values()}

    def uid_of(self, key: Key) -> str:
        """Return an object's uid; empty where it is not known."""
        known = self._objects[key.kind].get(key)
        return known.uid if known is not None else ""

    def sandbox(self, namespace: str, name: str) -> Sandbox | None:
        """Return a Sandbox."""
        return self._get(Sandbox, Key(resources.SANDBOXES.kind, namespace, name))

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Return a pod."""
        return self._get(Pod, Key(resources.PODS.kind, namespace, name))

    def template(self, namespace: str, name: str) -> SandboxTemplate | None:
        """Return a template."""
        return self._get(SandboxTemplate, Key(resources.TEMPLATES.kind, namespace, name))

    def pool(self, namespace: str, name: str) -> SandboxPool | None:
        """Return a pool."""
        return self._get(SandboxPool, Key(resources.POOLS.kind, namespace, name))

    def policy(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a network policy as the API server gave it."""
        return self._get(dict, Key(resources.POLICIES.kind, namespace, name))

    def policies(self, namespace: str) -> Iterator[dict[str, Any]]:
        """Return the network policies of a namespace."""
        return self._all(dict, resources.POLICIES, namespace)

    def pool_of(self, namespace: str, name: str) -> str:
        """Return the pool that an unclaimed Sandbox is counted in; empty where there is none."""
        known = self._objects[resources.SANDBOXES.kind].get(Key(resources.SANDBOXES.kind, namespace, name))
        return known.pool if known is not None else ""

    def members(self, namespace: str, pool: str) -> list[Sandbox]:
        """Return the unclaimed Sandboxes that carry a pool's label."""
        found = (self.sandbox(namespace, name) for name in self._members.get((namespace, pool), ()))
        return [sandbox for sandbox in found if sandbox is not None]

    def count_members(self, namespace: str, pool: str) -> int:
        """Return how many unclaimed Sandboxes carry a pool's label."""
        return len(self._members.get((namespace, pool), ()))

    def pods_alone(self) -> Iterator[Pod]:
        """Return the pods whose Sandbox is not known."""
        boxes = self._objects[resources.SANDBOXES.kind]
        for key in self.keys(resources.PODS):
            alone = key._replace(kind=resources.SANDBOXES.kind) not in boxes
            if alone and (pod := self.pod(key.namespace, key.name)) is not None:
                yield pod

    def all_sandboxes(self, namespace: str) -> Iterator[Sandbox]:
        """Return all Sandboxes of a namespace."""
        return self._all(Sandbox, resources.SANDBOXES, namespace)

    def all_pools(self, namespace: str) -> Iterator[SandboxPool]:
        """Return all pools of a namespace."""
        return self._all(SandboxPool, resources.POOLS, namespace)

    def _get(self, kind: type[_T], key: Key) -> _T | None:
        known = self._objects[key.kind].get(key)
        if known is None:
            return None
        found = _UNPACKERS[key.kind](known.value) if isinstance(known.value, bytes) else known.value
        return found if isinstance(found, kind) else None

    def _all(self, kind: type[_T], resource: Resource, namespace: str) -> Iterator[_T]:
        for key in self.keys(resource):
            if key.namespace == namespace and (found := self._get(kind, key)) is not None:
                yield found

    def _left_pool(self, parsed: Parsed, known: _Entry) -> bool:
        """Tell whether this is the claim of a Sandbox that waited in a pool; anybody may write such a label."""
        if not isinstance(parsed, Sandbox) or parsed.spec.claim is None or parsed.metadata.uid != known.uid:
            return False
        return bool(known.pool) and self.pool(parsed.metadata.namespace, known.pool) is not None

    def _forget_member(self, key: Key) -> None:
        known = self._objects[key.kind].get(key)
        if known is not None and known.pool:
            members = self._members[key.namespace, known.pool]
            members.discard(key.name)
            if not members:
                del self._members[key.namespace, known.pool]


@dataclass(slots=True)
class Listing:
    """A full list of one kind in one namespace, taken in object by object: what it lacks at its end is gone.

    A long list is older than what is heard while it is read. So what came meanwhile stays though it is not in it, and
    what went meanwhile does not come back though it is.
    """

    _store: Store
    _open: "list[Listing]"
    _resource: Resource
    _namespace: str
    changed: set[Key] = field(default_factory=set)
    bad: int = 0
    gone: set[str] = field(default_factory=set)
    _before: dict[Key, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        known = (key for key in self._store.keys(self._resource) if key.namespace == self._namespace)
        self._before = {key: self._store.uid_of(key) for key in known}
        self._open.append(self)
        return self

    def put(self, manifest: dict[str, Any]) -> None:
        """Take in the next object; one that can't be parsed is counted."""
        key = key_of(self._resource, manifest)
        self._before.pop(key, None)
        if str(manifest["metadata"].get("uid", "")) in self.gone - {""}:
            return
        try:
            if self._store.put(self._resource, manifest):
                self.changed.add(key)
        except ValueError:
            self.bad += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.remove(self)
        if error is not None:
            return  # The list broke off: it says nothing of what is gone.
        for key, uid in self._before.items():
            if self._store.uid_of(key) == uid:
                self._store.remove(key, uid)
                self.changed.add(key)


def _pool_of(parsed: Parsed) -> str:
    if isinstance(parsed, Sandbox) and parsed.spec.claim is None:
        return parsed.metadata.labels.get(names.LABEL_POOL, "")
    return ""


def _pack(parsed: Parsed) -> Parsed | bytes:
    """Return what is kept of an object. Unclaimed Sandboxes stay as they are: a pool looks at all of its own."""
    if isinstance(parsed, Pod) or (isinstance(parsed, Sandbox) and parsed.spec.claim is not None):
        return parsed.model_dump_json(by_alias=True, exclude_unset=True).encode()
    return parsed


def _newer(metadata: dict[str, Any], known: _Entry) -> bool:
    """Compare versions as numbers, which Kubernetes allows for objects of one kind since 1.35 and etcd always did."""
    if metadata.get("uid", "") != known.uid:
        return _created(metadata) >= known.created
    return _version(metadata) > known.version


def _version(metadata: dict[str, Any]) -> int:
    return int(metadata.get("resourceVersion") or 0)


def _created(metadata: dict[str, Any]) -> str:
    return str(metadata.get("creationTimestamp") or "")
