"""The gateway's own copy of the namespace's Sandboxes, so that looking one up costs no request.

Fed by `watch.py` with what the API server tells, and by the claims with what this gateway wrote itself. Resource
versions are opaque, so which of two copies is newer is told by the watch's order alone: an own write counts from the
moment it was answered, and until the watch has delivered that very version (or `HOLD` seconds have passed, should it
never come) what the watch tells of the object is older and only noted.

It does no I/O and reads no clock. Everything is bounded by the number of Sandboxes in the namespace.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sandpod_api.types import Sandbox
from sandpod_gateway.backends.kubernetes.cache.records import is_claimable, is_live, takes_pod

HOLD: Final = 30.0
"""Seconds that an own write is believed without the watch: far longer than a watch lags, on a busy machine too."""
_VERSIONS: Final = 8  # of each object, to know an own write that the watch delivered before its answer came
_GONE: Final = 1024  # objects whose deletion was seen, to know a late answer about one of them

T = TypeVar("T")


@dataclass(slots=True)
class _Entry:
    """One name: what the watch told last, and what this gateway wrote since."""

    observed: Sandbox | None = None
    versions: deque[str] = field(default_factory=lambda: deque(maxlen=_VERSIONS))
    own: Sandbox | None = None
    own_deleted: str = ""  # the uid of what this gateway deleted
    until: float = 0.0

    @property
    def held(self) -> bool:
        return self.own is not None or bool(self.own_deleted)

    def let_go(self) -> None:
        self.own, self.own_deleted = None, ""

    def view(self) -> Sandbox | None:
        if self.own is not None:
            return self.own
        if self.observed is not None and self.observed.metadata.uid == self.own_deleted:
            return None
        return self.observed


class SandboxStore:
    """Sandboxes by name, the claimed ones by owner, the claimable ones by template."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._view: dict[str, Sandbox] = {}
        self._owned: dict[str, dict[str, Sandbox]] = {}
        self._warm: dict[str, dict[str, Sandbox]] = {}
        self._live: Counter[str] = Counter()  # by owner
        self._pods = 0  # of live ones
        self._gone: deque[str] = deque(maxlen=_GONE)
        self._wakers: set[asyncio.Event] = set()

    def get(self, name: str) -> Sandbox | None:
        """Return the Sandbox of that name."""
        return self._view.get(name)

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

    def observe(self, sandbox: Sandbox) -> None:
        """Take what the watch tells of an object that is there."""
        meta = sandbox.metadata
        entry = self._entries.setdefault(meta.name, _Entry())
        entry.observed = sandbox
        entry.versions.append(meta.resource_version)
        if entry.own is not None and entry.own.metadata.resource_version == meta.resource_version:
            entry.let_go()
        self._refresh(meta.name, entry)

    def remove(self, name: str, uid: str) -> None:
        """Take the watch's word that an object is gone."""
        self._gone.append(uid)
        entry = self._entries.get(name)
        if entry is None:
            return
        if entry.own_deleted == uid or (entry.own is not None and entry.own.metadata.uid == uid):
            entry.let_go()
        if entry.observed is not None and entry.observed.metadata.uid == uid:
            entry.observed = None
        self._refresh(name, entry)

    def replace(self, sandboxes: Iterable[Sandbox], began: float) -> None:
        """Take a whole list, asked for at time `began`: what it lacks is gone. Later own writes stay."""
        listed = {sandbox.metadata.name: sandbox for sandbox in sandboxes}
        for name, entry in list(self._entries.items()):
            if entry.held and entry.until - HOLD < began:
                entry.let_go()
            if name not in listed:
                entry.observed = None
                self._refresh(name, entry)
        for sandbox in listed.values():
            self.observe(sandbox)

    def note(self, sandbox: Sandbox, now: float) -> None:
        """Take the answer to an own write, or to an own request for one object, at time `now`."""
        meta = sandbox.metadata
        entry = self._entries.setdefault(meta.name, _Entry())
        if meta.resource_version not in entry.versions and meta.uid not in self._gone and meta.uid != entry.own_deleted:
            entry.let_go()
            entry.own, entry.until = sandbox, now + HOLD
        self._refresh(meta.name, entry)

    def note_deleted(self, name: str, now: float) -> None:
        """Take the answer to an own deletion."""
        entry = self._entries.get(name)
        sandbox = self._view.get(name)
        if entry is not None and sandbox is not None:
            entry.own, entry.own_deleted, entry.until = None, sandbox.metadata.uid, now + HOLD
            self._refresh(name, entry)

    def settle(self, now: float) -> None:
        """Believe the watch where it has not delivered an own write in time."""
        for name, entry in list(self._entries.items()):
            if entry.held and now > entry.until:
                entry.let_go()
                self._refresh(name, entry)

    async def until(self, check: Callable[[], T | None], timeout: float) -> T | None:  # noqa: ASYNC109 # None is an answer here
        """Return what `check` gives once it gives something; it is asked again after every change.

        Args:
            check: Looks at the store; must not wait.
            timeout: Seconds after which None is returned.
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

    def _refresh(self, name: str, entry: _Entry) -> None:
        """Bring the view and its indexes up to the entry."""
        new, old = entry.view(), self._view.get(name)
        if new is None and not entry.held and entry.observed is None:
            self._entries.pop(name, None)
        if new is old:
            return
        if old is not None:
            self._unindex(name, old)
        if new is None:
            del self._view[name]
        else:
            self._view[name] = new
            self._index(name, new)
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
            _drop(self._owned, sandbox.spec.claim.owner, name)
            self._live[sandbox.spec.claim.owner] -= is_live(sandbox)
            self._pods -= takes_pod(sandbox)
            if not self._live[sandbox.spec.claim.owner]:
                del self._live[sandbox.spec.claim.owner]
        # A template stays known with no warm sandbox left: a gauge that vanishes is not the same as one at zero.
        self._warm.get(sandbox.spec.template_ref.name, {}).pop(name, None)


def _drop(index: dict[str, dict[str, Sandbox]], key: str, name: str) -> None:
    names = index.get(key)
    if names is not None:
        names.pop(name, None)
        if not names:
            del index[key]
