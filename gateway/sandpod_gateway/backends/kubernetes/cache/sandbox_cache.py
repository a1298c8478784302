"""The gateway's own copy of the namespace's Sandboxes, so that looking one up costs no request.

It takes in what the watch reports and the answers to this gateway's own requests: an own write counts at once. It does
no I/O. Everything is bounded by the number of Sandboxes in the namespace.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from pydantic import ValidationError

from sandpod_api.types import Sandbox
from sandpod_gateway.backends.kubernetes.cache.records import is_claimable, is_live, takes_pod
from sandpod_kube.errors import ClusterError
from sandpod_kube.object_cache import Listing, ObjectCache
from sandpod_kube.resources import SANDBOXES, Key

logger = logging.getLogger(__name__)

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

    def put(self, sandbox: Sandbox, listing: Listing[Sandbox] | None = None) -> None:
        """Take in a Sandbox, as part of a full list where one is given, unless a newer state of it is known."""
        meta = sandbox.metadata
        created = meta.creation_timestamp.isoformat() if meta.creation_timestamp is not None else ""
        metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version, "creationTimestamp": created}
        (listing or self._cache).put(_key(meta.name), metadata, lambda: sandbox)

    def take(self, body: dict[str, Any], listing: Listing[Sandbox] | None = None) -> Sandbox | None:
        """Put a Sandbox as the API server has it, and return it.

        One that this version does not understand is left out until it does; then None is returned.
        """
        try:
            sandbox = Sandbox.model_validate(body)
        except ValidationError:
            logger.warning("a Sandbox that this version does not understand is left out")
            self._cache.drop(_key(str((body.get("metadata") or {}).get("name"))))
            return None
        self.put(sandbox, listing)
        return sandbox

    def take_answer(self, body: dict[str, Any]) -> Sandbox:
        """Take the Sandbox that the API server answered with. Raises ClusterError: it is not one that is understood."""
        sandbox = self.take(body)
        if sandbox is None:
            raise ClusterError("the API server answered with a Sandbox that this version does not understand")
        return sandbox

    def remove(self, name: str, uid: str = "") -> None:
        """Take in that a Sandbox is gone: that of a uid, or the one that is known, whatever the watch still reports."""
        self._cache.remove(_key(name), uid)

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
            # A template stays known with no warm sandbox left: a gauge that vanishes is not the same as one at zero.
            self._warm.get(old.spec.template_ref.name, {}).pop(key.name, None)
            self._count(old, -1)
        if new is not None:
            if is_claimable(new):
                self._warm.setdefault(new.spec.template_ref.name, {})[key.name] = new
            self._count(new, 1)
        self._wake()

    def _count(self, sandbox: Sandbox, step: int) -> None:
        """Add a Sandbox to its owner's, or take it from them (-1)."""
        if sandbox.spec.claim is None:
            return
        owner = sandbox.spec.claim.owner
        owned = self._owned.setdefault(owner, {})
        if step > 0:
            owned[sandbox.metadata.name] = sandbox
        else:
            del owned[sandbox.metadata.name]
        self._live[owner] += step * is_live(sandbox)
        self._pods += step * takes_pod(sandbox)
        if not owned:
            del self._owned[owner], self._live[owner]

    def _wake(self) -> None:
        for changed in self._wakers:
            changed.set()


def _key(name: str) -> Key:
    return Key(SANDBOXES.kind, "", name)
