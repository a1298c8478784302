"""The newest known state of objects, from a watch, the answers to requests and full lists. It does no I/O.

Two states of an object are ordered by their resource versions, which are numbers in every Kubernetes and documented as
comparable since 1.35; where one is no number, the later report counts. A deleted object does not come back by a late
answer: a uid is never used again, so only a list that began later can show that the deletion was a mistake.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from sandpod_kube.resources import Key

GONE: Final = 10_000
"""Deletions that are remembered: some minutes' worth on the busiest cluster; late answers come within seconds."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    uid: str
    version: str
    created: str
    value: T


class ObjectCache(Generic[T]):
    """Objects by kind, namespace and name, each as a value that the owner makes of it."""

    def __init__(self, on_change: Callable[[Key, T | None, T | None], None]) -> None:
        """Keep nothing yet; `on_change` gets the key, what was known and what is known, after each change."""
        self._on_change = on_change
        self._kinds: dict[str, dict[Key, _Entry[T]]] = {}
        self._gone: dict[str, None] = {}
        self._listings: list[Listing[T]] = []

    def put(self, key: Key, metadata: Mapping[str, Any], parse: Callable[[], T]) -> bool:
        """Take in an object, unless a newer state of it is known already, and return whether it is news.

        Only where it is news its value is parsed; what that raises is passed on.
        """
        uid, created = str(metadata.get("uid", "")), str(metadata.get("creationTimestamp") or "")
        known = self._kinds.setdefault(key.kind, {}).get(key)
        if uid in self._gone or (known is not None and not _newer(metadata, known)):
            return False
        entry = _Entry(uid, str(metadata.get("resourceVersion") or ""), created, parse())
        self._kinds[key.kind][key] = entry
        before = known.value if known is not None else None
        if known is not None and known.uid != uid:
            self._on_change(key, before, None)
            before = None
        self._on_change(key, before, entry.value)
        return True

    def remove(self, key: Key, uid: str = "") -> None:
        """Forget an object that is gone; with a uid, a late report of an earlier one does not remove its successor."""
        known = self._kinds.get(key.kind, {}).get(key)
        gone = uid or (known.uid if known is not None else "")
        if gone:
            self._gone[gone] = None
            if len(self._gone) > GONE:
                del self._gone[next(iter(self._gone))]
            for listing in self._listings:
                listing.gone.add(gone)
        if known is not None and known.uid == gone:
            del self._kinds[key.kind][key]
            self._on_change(key, known.value, None)

    def drop(self, key: Key) -> None:
        """Forget an object that can't be understood; what comes of it later is news."""
        known = self._kinds.get(key.kind, {}).pop(key, None)
        if known is not None:
            self._on_change(key, known.value, None)

    @contextmanager
    def listing(self, kind: str, namespace: str) -> "Iterator[Listing[T]]":
        """Take in a full list of one kind in one namespace; to be entered before the list is asked for.

        A long list is older than the events that arrive while it is read. So what is created meanwhile stays though it
        is not in the list, and what is deleted meanwhile does not come back though it is. After a list that breaks off
        nothing counts as gone.
        """
        before = {key: uid for key, uid in self.uids(kind).items() if key.namespace == namespace}
        listing = Listing(self, before)
        self._listings.append(listing)
        try:
            yield listing
        finally:
            self._listings.remove(listing)
        for key, uid in before.items():
            if self.uid_of(key) == uid:
                self.remove(key, uid)
                listing.changed.add(key)

    def get(self, key: Key) -> T | None:
        """Return an object's value."""
        known = self._kinds.get(key.kind, {}).get(key)
        return known.value if known is not None else None

    def items(self, kind: str) -> Iterator[tuple[Key, T]]:
        """Return the keys and values of all objects of a kind."""
        return ((key, entry.value) for key, entry in list(self._kinds.get(kind, {}).items()))

    def uids(self, kind: str) -> dict[Key, str]:
        """Return the uids of all objects of a kind."""
        return {key: entry.uid for key, entry in self._kinds.get(kind, {}).items()}

    def uid_of(self, key: Key) -> str:
        """Return an object's uid; empty where it is not known."""
        known = self._kinds.get(key.kind, {}).get(key)
        return known.uid if known is not None else ""


@dataclass(eq=False, slots=True)
class Listing(Generic[T]):
    """A full list, taken in object by object."""

    _cache: ObjectCache[T]
    _before: dict[Key, str]  # uids of what was known and has not been in the list so far
    changed: set[Key] = field(default_factory=set)
    bad: int = 0
    gone: set[str] = field(default_factory=set)  # uids, meanwhile

    def put(self, key: Key, metadata: Mapping[str, Any], parse: Callable[[], T]) -> None:
        """Take in the next object; one that can't be parsed is counted."""
        uid = str(metadata.get("uid", ""))
        self._before.pop(key, None)
        if uid in self.gone:
            return
        self._cache._gone.pop(uid, None)  # noqa: SLF001 - a part of the cache: the list is newer than that
        try:
            if self._cache.put(key, metadata, parse):
                self.changed.add(key)
        except ValueError:
            self.bad += 1


def _newer(metadata: Mapping[str, Any], known: _Entry[Any]) -> bool:
    if metadata.get("uid", "") != known.uid:
        return str(metadata.get("creationTimestamp") or "") >= known.created
    version = str(metadata.get("resourceVersion") or "")
    if version.isdecimal() and known.version.isdecimal():
        return int(version) > int(known.version)
    return version != known.version
