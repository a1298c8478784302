"""Keeps the waiting line of each namespace: sandboxes, pods and pools are reported to it, and it wakes whoever is next.

Losing it costs one refusal for each that waits.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from sandpod_api import names
from sandpod_api.conditions import Reason
from sandpod_api.types import Sandbox
from sandpod_kube.resources import POOLS, SANDBOXES, Key
from sandpod_operator.cache.object_cache import Store
from sandpod_operator.model.observed import Neighbours, Refusal, Share
from sandpod_operator.quota.line import Line
from sandpod_operator.settings import OperatorSettings


class Wakes(Protocol):
    """Has keys worked on, soon or at some time."""

    def add(self, key: Key) -> None: ...  # noqa: D102
    def add_at(self, key: Key, date: datetime) -> None: ...  # noqa: D102


class Admission:
    """The waiting lines of all namespaces."""

    def __init__(
        self, *, store: Store, queue: Wakes, settings: OperatorSettings, clock: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._queue = queue
        self._settings = settings
        self._clock = clock
        self._lines = defaultdict[str, Line](lambda: Line(retry=settings.refused_retry, longest=settings.backoff_max))
        self._pools: dict[Key, Share] = {}

    def is_waiting(self, namespace: str) -> bool:
        """Return whether anybody waits for a place in the quota of a namespace."""
        return bool(self._lines[namespace].queue)

    def _shares(self, namespace: str) -> dict[Key, Share]:
        """Return each pool's share: its places as of now, the rest as of its last plan."""
        waiters, count = self._lines[namespace].waiters, self._store.count_members
        return {
            key: replace(
                share, placed=count(namespace, key.name) - (len(waiters[key].sandboxes) if key in waiters else 0)
            )
            for key, share in self._pools.items()
            if key.namespace == namespace
        }

    def held(self, sandbox: Sandbox, *, wants: bool) -> Refusal | None:
        """Return why a sandbox has to wait for its turn, or None when it may create its pod, or does not want one."""
        if not wants:
            self._wants_none(sandbox)
            return None
        key, now = _key(sandbox), self._clock()
        line = self._lines[key.namespace]
        if not line.queue:
            return None
        line.join(_who(sandbox), sandbox.metadata.uid, key, now)
        if line.turn(self._shares(key.namespace), now) == key:
            return None
        self._offer(key.namespace)
        # Its turn wakes it; the date is for the case that something was missed.
        until = now + timedelta(seconds=self._settings.backoff_max)
        return Refusal(reason=Reason.QUOTA_EXCEEDED, message=line.message, attempts=line.rounds, until=until)

    def _wants_none(self, sandbox: Sandbox) -> None:
        """Note that a sandbox waits for no place in the quota: it has a pod, or must not have one."""
        namespace, uid = sandbox.metadata.namespace, sandbox.metadata.uid
        line = self._lines[namespace]
        waiter = line.whose.get(uid)
        waited = waiter is not None and waiter.for_node
        lacks_node = sandbox.spec.claim is not None and sandbox.status.reason == Reason.UNSCHEDULABLE
        if lacks_node:
            line.join(_who(sandbox), uid, _key(sandbox), self._clock(), for_node=True)
        else:
            line.leave(uid)
        if waited != lacks_node:
            self._wake_pools(namespace)
        if waiter is not None or lacks_node:
            self._offer(namespace)

    def refused(self, sandbox: Sandbox, message: str) -> None:
        """Note that the quota refused a sandbox's pod."""
        key, uid, now = _key(sandbox), sandbox.metadata.uid, self._clock()
        self._lines[key.namespace].join(_who(sandbox), uid, key, now)
        self._lines[key.namespace].refused(uid, message, now)
        self._offer(key.namespace)

    def let_in(self, namespace: str, uid: str) -> None:
        """Note that a sandbox has its pod."""
        self._lines[namespace].let_in(uid)
        self._offer(namespace)

    def failed(self, key: Key) -> None:
        """Note that work on a sandbox failed, whatever it was: it must not hold up those behind it."""
        self._lines[key.namespace].pass_on(self._store.uid_of(key), self._clock())
        self._offer(key.namespace)

    def pod_left(self, namespace: str) -> None:
        """Note that a pod is gone or has ended: the quota no longer counts it."""
        self._lines[namespace].pod_left(self._clock())
        self._offer(namespace)

    def gone(self, namespace: str, uid: str) -> None:
        """Note that a Sandbox is gone."""
        waiter = self._lines[namespace].whose.get(uid)
        self._lines[namespace].leave(uid)
        if waiter is not None and waiter.for_node:
            self._wake_pools(namespace)
        self._offer(namespace)

    def neighbours(self, pool: Key) -> Neighbours:
        """Return what a pool has to know about the others."""
        line, shares = self._lines[pool.namespace], self._shares(pool.namespace)
        giver = line.giver(shares, self._clock())
        return Neighbours(
            wait_for_node=any(share.unscheduled for key, share in shares.items() if key != pool),
            nodes_yield_until=line.nodes_yield_until(),
            gives_to=giver[1] if giver is not None and giver[0] == pool else None,
        )

    def took_share(self, share: Share) -> None:
        """Note what a pool has, by its plan."""
        before = self._pools.get(share.key)
        self._pools[share.key] = share
        if bool(share.unscheduled) != bool(before is not None and before.unscheduled):
            self._wake_pools(share.key.namespace, but=share.key)
        if share != before:
            self._offer(share.key.namespace)

    def gave(self, who: Key) -> None:
        """Note that a pool has given a warm sandbox up for somebody."""
        self._lines[who.namespace].gave(who, self._clock())

    def forget_pool(self, key: Key) -> None:
        """Drop what is kept about a pool that is gone."""
        if self._pools.pop(key, None) is not None:
            self._wake_pools(key.namespace)

    def _offer(self, namespace: str) -> None:
        """Wake whoever has the turn, or will have it, and whoever has to give a place up."""
        line = self._lines[namespace]
        if not line.waiters:
            return
        shares, now = self._shares(namespace), self._clock()
        if (turn := line.turn(shares, now)) is not None:
            self._queue.add(turn)
        elif (wakes := line.wakes(shares)) is not None:
            self._queue.add_at(*wakes)
        if (giver := line.giver(shares, now)) is not None:
            self._queue.add(giver[0])

    def _wake_pools(self, namespace: str, *, but: Key | None = None) -> None:
        for key in self._pools:
            if key.namespace == namespace and key != but:
                self._queue.add(key)


def _who(sandbox: Sandbox) -> Key:
    """Return who waits when a sandbox waits: its pool, or itself once it is claimed."""
    pool = sandbox.metadata.labels.get(names.LABEL_POOL) if sandbox.spec.claim is None else None
    return Key(POOLS.kind, sandbox.metadata.namespace, pool) if pool else _key(sandbox)


def _key(sandbox: Sandbox) -> Key:
    return Key(SANDBOXES.kind, sandbox.metadata.namespace, sandbox.metadata.name)
