"""The gateway's own copy of the namespace's Sandboxes, so that looking one up costs no request.

It takes in what the watch reports and the answers to this gateway's own requests: an own write counts at once. It does
no I/O. Everything is bounded by the number of Sandboxes in the namespace.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from sandpod_api.types import Sandbox
from sandpod_gateway.backends.kubernetes.cache.records import is_claimable, is_live, takes_pod
from sandpod_kube.object_cache import Listing, ObjectCache
from sandpod_kube.resources import SANDBOXES, Key

T = TypeVar("T")


class SandboxStore:
    """Sandboxes by name, the claimed ones by owner, the claimable ones by template."""

    def __init__(self) -> None:
        self._cache = ObjectCache[Sandbox](self._changed)
        self._owned: dict[str, dict[str, Sandbox]] = {}
        self._warm: dict[str, dict[str, Sandbox]] = {}
        self._live: Counter[str] = Counter()  # by owner
        self._pods = 0  # of live ones
        self._reached = -1
        self._wakers: set[asyncio.Event] = set()

    def get(self, name: str) -> Sandbox | None:
        """Return the Sandbox of that name."""
        return self._cache.get(_key(name))

    def owned(self, owner: str) -> list[Sandbox]:
        """Return all Sandboxes that the owner claimed, ended ones included."""
        return list(self._owned.get(owner, {}).values())

    def warm(self, template: str) -> list[Sandbox]:
        """Return the template's Sandboxes that can be claimed."""
        return list(self._warm.get(template, {}).values())

    def warm_counts(self) -> dict[str, int]:
        """Return how many Sandboxes of each template can be claimed."""
        return {template: len(sandboxes) for template, sandboxes in self._warm.items()}

    def live(self, owner: str) -> int:
        """Return how many Sandboxes the owner has that have not ended."""
        return self._live[owner]

    @property
    def live_total(self) -> int:
        """Claimed Sandboxes that have not ended and have a pod, of all owners: suspended ones take no room."""
        return self._pods

    def put(self, sandbox: Sandbox) -> None:
        """Take in a Sandbox that the watch or an answer reports, unless a newer state of it is known."""
        self._cache.put(*entry(sandbox))

    def remove(self, name: str, uid: str = "") -> None:
        """Take in that a Sandbox is gone: that of a uid, or the one that is known, whatever the watch still reports."""
        self._cache.remove(_key(name), uid)

    def drop(self, name: str) -> None:
        """Leave out a Sandbox that this version does not understand, until it does."""
        self._cache.drop(_key(name))

    def reached(self, version: str) -> None:
        """Take in that the watch has reported every write up to a resource version."""
        if version.isdecimal():
            self._reached = int(version)
            self._wake()

    def has_reached(self, version: str) -> bool:
        """Return whether the watch has reported every write up to a resource version."""
        return version.isdecimal() and int(version) <= self._reached

    def listing(self) -> AbstractContextManager[Listing[Sandbox]]:
        """Return what takes in the entries of a full list; to be entered before the list is asked for."""
        return self._cache.listing(SANDBOXES.kind, "")

    async def until(self, check: Callable[[], T | None], timeout: float) -> T | None:  # noqa: ASYNC109 # None is an answer here
        """Return what `check` gives once it gives something, or None after so many seconds.

        It is asked again after every change, and must not wait.
        """
        changed = asyncio.Event()
        self._wakers.add(changed)
        try:
            async with asyncio.timeout(timeout):
                while (found := check()) is None:
                    changed.clear()
                    await changed.wait()
                return found
        except TimeoutError:
            return None
        finally:
            self._wakers.discard(changed)

    def _changed(self, key: Key, old: Sandbox | None, new: Sandbox | None) -> None:
        if old is not None:
            self._unindex(key.name, old)
        if new is not None:
            self._index(key.name, new)
        self._wake()

    def _wake(self) -> None:
        for changed in self._wakers:
            changed.set()

    def _index(self, name: str, sandbox: Sandbox) -> None:
        if sandbox.spec.claim is not None:
            self._owned.setdefault(sandbox.spec.claim.owner, {})[name] = sandbox
            self._live[sandbox.spec.claim.owner] += is_live(sandbox)
            self._pods += takes_pod(sandbox)
        if is_claimable(sandbox):
            self._warm.setdefault(sandbox.spec.template_ref.name, {})[name] = sandbox

    def _unindex(self, name: str, sandbox: Sandbox) -> None:
        if sandbox.spec.claim is not None:
            owner = sandbox.spec.claim.owner
            del self._owned[owner][name]
            if not self._owned[owner]:
                del self._owned[owner]
            self._live[owner] -= is_live(sandbox)
            if not self._live[owner]:
                del self._live[owner]
            self._pods -= takes_pod(sandbox)
        # A template stays known with no warm sandbox left: a gauge that vanishes is not the same as one at zero.
        self._warm.get(sandbox.spec.template_ref.name, {}).pop(name, None)


def entry(sandbox: Sandbox) -> tuple[Key, dict[str, str], Callable[[], Sandbox]]:
    """Return a Sandbox as `ObjectCache` and its listings take it."""
    meta = sandbox.metadata
    created = meta.creation_timestamp.isoformat() if meta.creation_timestamp is not None else ""
    metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version, "creationTimestamp": created}
    return _key(meta.name), metadata, lambda: sandbox


def _key(name: str) -> Key:
    return Key(SANDBOXES.kind, "", name)
