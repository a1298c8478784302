"""Keeps the waiting line of each namespace: sandboxes, pods and pools are reported to it, and it wakes whoever is next.

Losing it costs one refusal for each that waits.
"""

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
        self._lines: dict[str, Line] = {}
        self._pools: dict[Key, Share] = {}

    def line(self, namespace: str) -> Line:
        """Return the line of a namespace."""
        if namespace not in self._lines:
            longest = self._settings.backoff_max
            self._lines[namespace] = Line(retry=self._settings.refused_retry, longest=longest)
        return self._lines[namespace]

    def shares(self, namespace: str) -> dict[Key, Share]:
        """Return each pool's share: its places as of now, the rest as of its last plan."""
        waiters = self.line(namespace).waiters
        return {
            key: replace(
                share,
                placed=self._store.count_members(namespace, key.name)
                - (len(waiters[key].sandboxes) if key in waiters else 0),
            )
            for key, share in self._pools.items()
            if key.namespace == namespace
        }

    def held(self, sandbox: Sandbox, *, wants: bool) -> Refusal | None:
        """Return why a sandbox that wants a pod has to wait for its turn, or None when it may create it.

        Args:
            sandbox: It is looked at.
            wants: Whether it would create a pod now.
        """
        if not wants:
            self._wants_none(sandbox)
            return None
        key, namespace = _key(sandbox), sandbox.metadata.namespace
        line, now = self.line(namespace), self._clock()
        if not line.queue:
            return None
        line.join(_who(sandbox), sandbox.metadata.uid, key, now)
        if line.turn(self.shares(namespace), now) == key:
            return None
        self.offer(namespace)
        # Its turn wakes it; the date is for the case that something was missed.
        until = now + timedelta(seconds=self._settings.backoff_max)
        return Refusal(reason=Reason.QUOTA_EXCEEDED, message=line.message, attempts=line.rounds, until=until)

    def _wants_none(self, sandbox: Sandbox) -> None:
        """Note that a sandbox waits for no place in the quota: it has a pod, or must not have one."""
        namespace, uid = sandbox.metadata.namespace, sandbox.metadata.uid
        line = self.line(namespace)
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
            self.offer(namespace)

    def refused(self, sandbox: Sandbox, message: str) -> None:
        """Note that the quota refused a sandbox's pod."""
        line, now, uid = self.line(sandbox.metadata.namespace), self._clock(), sandbox.metadata.uid
        line.join(_who(sandbox), uid, _key(sandbox), now)
        line.refused(uid, message, now)
        self.offer(sandbox.metadata.namespace)

    def let_in(self, namespace: str, uid: str) -> None:
        """Note that a sandbox has its pod."""
        self.line(namespace).let_in(uid)
        self.offer(namespace)

    def failed(self, key: Key) -> None:
        """Note that work on a sandbox failed, whatever it was: it must not hold up those behind it."""
        self.line(key.namespace).pass_on(self._store.uid_of(key), self._clock())
        self.offer(key.namespace)

    def pod_left(self, namespace: str) -> None:
        """Note that a pod is gone or has ended: the quota no longer counts it."""
        self.line(namespace).pod_left(self._clock())
        self.offer(namespace)

    def gone(self, namespace: str, uid: str) -> None:
        """Note that a Sandbox is gone."""
        line = self.line(namespace)
        waiter = line.whose.get(uid)
        line.leave(uid)
        if waiter is not None and waiter.for_node:
            self._wake_pools(namespace)
        self.offer(namespace)

    def neighbours(self, pool: Key) -> Neighbours:
        """Return what a pool has to know about the others."""
        line, shares = self.line(pool.namespace), self.shares(pool.namespace)
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
            self.offer(share.key.namespace)

    def gave(self, who: Key) -> None:
        """Note that a pool has given a warm sandbox up for somebody."""
        self.line(who.namespace).gave(who, self._clock())

    def forget_pool(self, key: Key) -> None:
        """Drop what is kept about a pool that is gone."""
        if self._pools.pop(key, None) is not None:
            self._wake_pools(key.namespace)

    def offer(self, namespace: str) -> None:
        """Wake whoever has the turn, or will have it, and whoever has to give a place up."""
        line = self.line(namespace)
        if not line.waiters:
            return
        shares, now = self.shares(namespace), self._clock()
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
    pool = sandbox.metadata.labels.get(names.LABEL_POOL)
    if pool and sandbox.spec.claim is None:
        return Key(POOLS.kind, sandbox.metadata.namespace, pool)
    return _key(sandbox)


def _key(sandbox: Sandbox) -> Key:
    return Key(SANDBOXES.kind, sandbox.metadata.namespace, sandbox.metadata.name)
