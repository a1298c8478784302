"""What the operator remembers and no object says. Losing it costs a retry, never a wrong decision.

Called by `reconcile.py` and `controller.py`, which write it, and by `observe.py`, which reads it. It talks to nothing.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from sandpod_api import names
from sandpod_api.conditions import Reason
from sandpod_api.types import Sandbox
from sandpod_operator import resources
from sandpod_operator.causes import clean
from sandpod_operator.errors import RefusedError
from sandpod_operator.kernels import Kernel
from sandpod_operator.resources import Key, Resource
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.shares import Claim, Given, Neighbours, Share

_QUOTA: Final = "exceeded quota"
_MAX_DOUBLINGS: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """The API server did not take a sandbox's pod.

    Attributes:
        reason: QuotaExceeded or AdmissionRefused.
        message: The API server's sentence.
        key: The Sandbox's.
        attempts: How often in a row.
        until: When to try again.
        since: When it was first refused.
        tried: The namespace's `room` when it was last refused; None where it was not the quota that refused a pod.
        pool: The pool that it waits in; None where a caller waits for it.
    """

    reason: Reason
    message: str
    key: Key
    attempts: int
    until: datetime
    since: datetime
    tried: int | None = None
    pool: Key | None = None


@dataclass(kw_only=True, slots=True)
class Notes:
    """All of it.

    Attributes:
        refusals: By the Sandbox's uid.
        kernels: Of the node of a pod, by the pod's uid.
        failures: By the pool's uid.
        status_written: By the pool's uid.
        shares: What each pool had when it was last looked at.
        given: For whom warm sandboxes were given up, by the uid of the claimed Sandbox or the pool.
        unplaced: Claimed Sandboxes that no node takes.
        room: How many signs of room for one more pod there were, by namespace.
        passed: Pools that gave one up, and the namespace's `room` when they did.
        tight: Namespaces whose quota refused a pod, until all there have had what they want.
    """

    refusals: dict[str, Refusal] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    status_written: dict[str, datetime] = field(default_factory=dict)
    shares: dict[Key, Share] = field(default_factory=dict)
    given: dict[str, Given] = field(default_factory=dict)
    unplaced: set[Key] = field(default_factory=set)
    room: Counter[str] = field(default_factory=Counter)
    passed: dict[Key, int] = field(default_factory=dict)
    tight: set[str] = field(default_factory=set)

    def neighbours(self, namespace: str) -> Neighbours:
        """Return who shares a namespace's quota and nodes: what pools had when last looked at, and refusals since."""
        claims: list[Claim] = []
        tried = {key: room for key, room in self.passed.items() if key.namespace == namespace}
        refused: set[Key] = set()
        for uid, refusal in self.refusals.items():
            if refusal.tried is None or refusal.key.namespace != namespace:
                continue
            if refusal.pool is None:
                claims.append(Claim(key=refusal.key, uid=uid, since=refusal.since, tried=refusal.tried))
            else:
                refused.add(refusal.pool)
                tried[refusal.pool] = max(refusal.tried, tried.get(refusal.pool, -1))
        found = Neighbours(
            pools=tuple(
                replace(share, refused=share.refused if key in refused else None, tried=tried.get(key, -1))
                for key, share in self.shares.items()
                if key.namespace == namespace
            ),
            claims=tuple(claims),
            unplaced=sum(key.namespace == namespace for key in self.unplaced),
            room=self.room[namespace],
            tight=namespace in self.tight,
        )
        if found.tight and found.satisfied:
            self.tight.discard(namespace)
            return replace(found, tight=False)
        return found

    def refused(
        self, owner: Sandbox, resource: Resource, error: RefusedError, now: datetime, settings: OperatorSettings
    ) -> None:
        """Note that a sandbox's pod or volume was refused, and when to try again: later each time."""
        metadata = owner.metadata
        before = self.refusals.get(metadata.uid)
        attempts = before.attempts + 1 if before is not None else 1
        wait = min(settings.backoff_max, settings.refused_retry * 2 ** min(attempts - 1, _MAX_DOUBLINGS))
        full = _QUOTA in error.message
        if full and resource is resources.PODS:
            self.tight.add(metadata.namespace)
        pool = metadata.labels.get(names.LABEL_POOL)
        self.refusals[metadata.uid] = Refusal(
            reason=Reason.QUOTA_EXCEEDED if full else Reason.ADMISSION_REFUSED,
            message=clean(error.message),
            key=Key(resources.SANDBOXES.kind, metadata.namespace, metadata.name),
            attempts=attempts,
            until=now + timedelta(seconds=wait),
            since=before.since if before is not None else now,
            tried=self.room[metadata.namespace] if full and resource is resources.PODS else None,
            pool=Key(resources.POOLS.kind, metadata.namespace, pool) if pool and owner.spec.claim is None else None,
        )

    def let_in(self, uid: str, namespace: str, resource: Resource) -> None:
        """Note that a sandbox's pod or volume was made: there may be room for one more."""
        self.refusals.pop(uid, None)
        self.given.pop(uid, None)
        if resource is resources.PODS:
            self.room[namespace] += 1

    def pod_left(self, namespace: str) -> None:
        """Note that a pod is gone. The quota counts it a moment longer, so another try comes soon after the first."""
        self.room[namespace] += 1
        for uid, refusal in self.refusals.items():
            if refusal.tried is not None and refusal.key.namespace == namespace:
                self.refusals[uid] = replace(refusal, attempts=0)

    def may_try(self, refusal: Refusal) -> bool:
        """Tell whether it is a refused sandbox's turn, now that its wait is over: time is a sign of room too."""
        namespace = refusal.key.namespace
        if refusal.tried == self.room[namespace]:
            self.room[namespace] += 1
        others = self.neighbours(namespace)
        turn = others.next_pool()
        return refusal.tried is None or refusal.pool is None or (turn is not None and turn.refused == refusal.key)

    def retry(self, key: Key, now: datetime) -> None:
        """Let a sandbox that was refused try again at once."""
        for uid, refusal in self.refusals.items():
            if refusal.key == key:
                self.refusals[uid] = replace(refusal, until=now)
                return

    def forget(self, uid: str) -> None:
        """Drop what is kept about a Sandbox or a pool that is gone."""
        for kept in (self.refusals, self.failures, self.status_written, self.given):
            kept.pop(uid, None)

    def took_share(self, share: Share) -> bool:
        """Note what a pool has, and return whether that is news."""
        before = self.shares.get(share.key)
        self.shares[share.key] = share
        if share.placed:
            self.given.pop(share.uid, None)
        return before != share

    def gave(self, giver: Key, uid: str, now: datetime) -> None:
        """Note that a pool gives a warm sandbox up for a claim or a pool: it must not take the place back itself."""
        self.passed[giver] = self.room[giver.namespace]
        before = self.given.get(uid)
        self.given[uid] = Given(times=before.times + 1 if before is not None else 1, last=now)

    def saw_claimed(self, key: Key, sandbox: Sandbox | None) -> bool:
        """Note whether a claimed sandbox waits for a node, and return whether that is news."""
        waits = sandbox is not None and sandbox.spec.claim is not None and sandbox.status.reason == Reason.UNSCHEDULABLE
        if waits == (key in self.unplaced):
            return False
        self.unplaced ^= {key}
        return True

    def trim(self, sandboxes: set[str], pods: set[str], pools: set[str]) -> None:
        """Drop what is kept about objects that are gone.

        Args:
            sandboxes: The uids of those that are there.
            pods: The same.
            pools: The same.
        """
        self.refusals = {uid: note for uid, note in self.refusals.items() if uid in sandboxes}
        self.kernels = {uid: note for uid, note in self.kernels.items() if uid in pods}
        self.failures = {uid: note for uid, note in self.failures.items() if uid in pools}
        self.status_written = {uid: note for uid, note in self.status_written.items() if uid in pools}
        self.given = {uid: note for uid, note in self.given.items() if uid in sandboxes | pools}
