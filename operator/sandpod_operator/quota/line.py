"""Who gets a place while a namespace's quota is full: claims first, then the pool with the smallest share.

Only the API server knows what fits, so it is asked, by creating a pod. As soon as it has refused one, whoever wants one
waits in the line, and one at a time has the turn:

- Let in: it leaves the line, and the next one has the turn. When nobody is left, pods are created at once again.
- Refused: the turn passes on, and it is not asked again before the next sign of room: a pod that left, or time. So a
  place costs at most one refusal of each, and one that no place is large enough for holds up nobody.
- The quota counts a pod for a moment after it is gone, so a refusal in that moment says nothing: the line rests, and
  the same one has the turn again. Otherwise whoever asks as that moment ends would get the place. It is over as soon as
  somebody is let in.

Claims are let in by the time for which they have waited; when one is, the others of its owner begin again, so that who
has many holds up nobody's first. A refused claim, whose caller waits, gets a place that a pool gives up; so does a pool
that has nothing. They are first in the line, which rests until that pod has left, so the giver does not take it back.
Nothing is given up for what is larger than the whole quota. A claim that no node takes waits for such a place alone.
"""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from sandpod_api import names
from sandpod_api.conditions import Reason
from sandpod_api.types import Sandbox
from sandpod_kube.resources import POOLS, Key
from sandpod_kube.workqueue import WorkQueue
from sandpod_operator.cache.object_cache import Store
from sandpod_operator.model.observed import Neighbours, Refusal, Share
from sandpod_operator.quota.node_queue import NodeQueue, key_of_sandbox
from sandpod_operator.quota.waiter import LONG_AGO, Waiter
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.status.failures import exceeds_whole_quota

# After a pod left, while the quota may still count it: tens of milliseconds on an idle cluster, seconds on a busy one.
SETTLES: Final = timedelta(seconds=10)
REST: Final = timedelta(seconds=1)  # between two tries meanwhile
LEAVES: Final = timedelta(seconds=30)  # longest wait for a pod that is given up to leave, before anybody is asked
GIVES_AGAIN: Final = timedelta(seconds=60)  # before the next gift to somebody whom the first did not help; doubles
# How long a claim that no node takes keeps pools' pods out of the scheduler's queue. Callers wait that long.
NODES_YIELD: Final = timedelta(seconds=10)
_MAX_DOUBLINGS: Final = 6


class Line:
    """Who waits for a place in one namespace. It is notified of changes and queues whoever is next.

    Losing it costs one refusal for each that waits.
    """

    def __init__(
        self,
        namespace: str,
        *,
        store: Store,
        queue: WorkQueue,
        settings: OperatorSettings,
        clock: Callable[[], datetime],
        left: Callable[[Waiter, timedelta], None] = lambda *_: None,
    ) -> None:
        self._left = left  # called with whoever leaves, and for how long it waited
        self._namespace, self._store, self._queue = namespace, store, queue
        self._settings, self._clock = settings, clock
        self._nodes = NodeQueue(queue.add, clock)
        self._pools: dict[Key, Share] = {}
        self._waiters: dict[Key, Waiter] = {}
        self._whose: dict[str, Waiter] = {}  # by the uids of their sandboxes
        self._message = ""  # what the quota said last
        self._rounds = 0  # how often all were refused in a row, since there was another sign of room than time
        self._next_round = LONG_AGO  # when all who were refused are asked again
        self._given = 0  # pods that were given up and have not left
        self._settles_at = LONG_AGO  # when the quota has surely noticed that a pod left
        self._rests_until = LONG_AGO  # nobody has the turn before

    def is_empty(self) -> bool:
        """Return whether nobody waits for a place in the quota. While there are any, pods are created in turn."""
        return not self._for_quota()

    def waiting(self) -> Counter[tuple[str, str]]:
        """Return how many wait, by what they are called in metrics."""
        return Counter(waiter.labels for waiter in self._waiters.values())

    def held(self, sandbox: Sandbox, *, wants: bool, placed: bool = True) -> Refusal | None:
        """Return why a sandbox has to wait for its turn; None if it may create its pod or wants none but its own."""
        if not wants:
            self._wants_none(sandbox, placed=placed)
        elif (behind := self._nodes.held(sandbox)) is not None:
            self.failed(sandbox.metadata.uid)  # or its turn for the quota would hold up others
            return behind
        elif not self.is_empty():
            self._join(sandbox)
            if self._turn() != key_of_sandbox(sandbox):
                self._offer()
                # Its turn wakes it; the date is for the case that something was missed.
                late, full = self._clock() + timedelta(seconds=self._settings.backoff_max), Reason.QUOTA_EXCEEDED
                return Refusal(reason=full, message=self._message, attempts=self._rounds, until=late)
        return None

    def _wants_none(self, sandbox: Sandbox, *, placed: bool) -> None:
        """Note that a sandbox waits for no place in the quota: it has a pod, or must not have one."""
        waited = (waiter := self._whose.get(sandbox.metadata.uid)) is not None and waiter.for_node
        lacks_node = sandbox.spec.claim is not None and sandbox.status.reason == Reason.UNSCHEDULABLE
        self._nodes.note(sandbox, lacks_node=lacks_node, placed=placed)
        if lacks_node:
            self._join(sandbox, for_node=True)
        else:
            self._leave(sandbox.metadata.uid)
        if waited != lacks_node:
            self._wake_pools()
        if waiter is not None or lacks_node:
            self._offer()

    def refused(self, sandbox: Sandbox, message: str) -> None:
        """Note that the quota refused a sandbox's pod."""
        waiter, now = self._join(sandbox), self._clock()
        self._message, waiter.hopeless = message, exceeds_whole_quota(message)
        if now < self._settles_at and not waiter.hopeless:
            self._rests_until = now + REST
        else:
            self._pass_on(waiter)
        self._offer()

    def failed(self, uid: str) -> None:
        """Note that work on a sandbox failed, whatever it was: it must not hold up those behind it."""
        if uid in self._whose:
            self._pass_on(self._whose[uid])
        self._offer()

    def let_in(self, uid: str) -> None:
        """Note that a sandbox has its pod."""
        self._rounds = 0
        if not self._given:  # else the next refusal may be of a place that is on its way
            self._settles_at = LONG_AGO
        if (waiter := self._whose.get(uid)) is not None:
            waiter.gifts, waiter.next_gift = 0, LONG_AGO
            for other in (each for each in self._waiters.values() if each.owner == waiter.owner):
                other.ranks_since = self._clock()
            self._leave(uid)
        self._offer()

    def gone(self, uid: str) -> None:
        """Note that a Sandbox is gone."""
        lacked_node = (waiter := self._whose.get(uid)) is not None and waiter.for_node
        self._leave(uid)
        self._nodes.gone(uid)
        if lacked_node:
            self._wake_pools()
        self._offer()

    def pod_left(self) -> None:
        """Note that a pod is gone or has ended: the quota no longer counts it, so there may be room."""
        now = self._clock()
        if self._given or self._all_refused():
            # Not while somebody is still to be asked: where pods leave all the time the line would rest for ever.
            self._settles_at = now + SETTLES
        self._given = max(0, self._given - 1)
        self._rounds, self._rests_until, self._next_round = 0, now, now
        self._begin_round()
        self._offer()

    def neighbours(self, pool: Key) -> Neighbours:
        """Return what a pool has to know about the others."""
        giver = self._giver()
        claims = (waiter.since for waiter in self._waiters.values() if waiter.for_node)
        return Neighbours(
            wait_for_node=any(share.unscheduled for key, share in self._pools.items() if key != pool),
            nodes_yield_until=max(claims, default=LONG_AGO) + NODES_YIELD,
            gives_to=giver[1] if giver is not None and giver[0] == pool else None,
        )

    def took_share(self, share: Share) -> None:
        """Note what a pool has, by its plan."""
        before = self._pools.get(share.key)
        self._pools[share.key] = share
        if bool(share.unscheduled) != bool(before is not None and before.unscheduled):
            self._wake_pools(but=share.key)
        if share != before:
            self._offer()

    def forget_pool(self, key: Key) -> None:
        """Drop what is kept about a pool that is gone."""
        if self._pools.pop(key, None) is not None:
            self._wake_pools()

    def gave(self, who: Key) -> None:
        """Note that a pool has given a warm sandbox up for somebody, whose pod is about to leave."""
        if (waiter := self._waiters.get(who)) is not None:
            now = self._clock()
            waiter.next_gift = now + GIVES_AGAIN * 2 ** min(waiter.gifts, _MAX_DOUBLINGS)
            waiter.gifts += 1
            self._given += 1
            self._rests_until = now + LEAVES

    def _join(self, sandbox: Sandbox, *, for_node: bool = False) -> Waiter:
        """Add a sandbox: its pool waits, or itself once it is claimed, and for one thing only."""
        pool, uid = sandbox.metadata.labels.get(names.LABEL_POOL), sandbox.metadata.uid
        key = Key(POOLS.kind, self._namespace, pool) if pool and sandbox.spec.claim is None else key_of_sandbox(sandbox)
        if (waiter := self._whose.get(uid)) is None or (waiter.key, waiter.for_node) != (key, for_node):
            self._leave(uid)
            now, owner = self._clock(), sandbox.spec.claim.owner if sandbox.spec.claim else ""
            new = Waiter(key=key, since=now, ranks_since=now, owner=owner, for_node=for_node)
            waiter = self._waiters.setdefault(key, new)
            waiter.sandboxes[uid] = key_of_sandbox(sandbox)
            self._whose[uid] = waiter
        return waiter

    def _leave(self, uid: str) -> None:
        if (waiter := self._whose.pop(uid, None)) is not None:
            del waiter.sandboxes[uid]
            if not waiter.sandboxes:
                del self._waiters[waiter.key]
                self._left(waiter, self._clock() - waiter.since)

    def _pass_on(self, waiter: Waiter) -> None:
        if self._all_refused():
            self._begin_round()  # Time was the sign of room.
        waiter.refused = True
        if self._all_refused() and self._clock() >= self._next_round:  # Those who come meanwhile don't put it off.
            self._next_round = self._clock() + self._settings.refused_wait(self._rounds)
            self._rounds += 1

    def _for_quota(self) -> list[Waiter]:
        return [waiter for waiter in self._waiters.values() if not waiter.for_node]

    def _all_refused(self) -> bool:
        return all(waiter.refused for waiter in self._for_quota())

    def _begin_round(self) -> None:
        for waiter in self._waiters.values():
            waiter.refused = False

    def _placed(self, pool: Key) -> int:
        """Return how many of a pool's sandboxes have a place, working or not."""
        waiting = self._waiters[pool].sandboxes if pool in self._waiters else ()
        return self._store.count_members(self._namespace, pool.name) - len(waiting)

    def _level(self, pool: Key) -> float:
        """Return how much a pool has of what it wants: 1 is all, as where that is not known."""
        wanted = self._pools[pool].wanted if pool in self._pools else 0
        return self._placed(pool) / wanted if wanted else 1.0

    def _order(self, waiter: Waiter) -> tuple[int, float, datetime, Key]:
        """Return a waiter's sort key: claims first, the longest wait before all, then pools by what they have."""
        if waiter.key.kind == POOLS.kind:
            return 1, self._level(waiter.key), waiter.since, waiter.key
        return 0, waiter.ranks_since.timestamp(), waiter.since, waiter.key

    def _turn(self) -> Key | None:
        now = self._clock()
        queue = self._for_quota() if now >= self._rests_until else []
        asked = [waiter for waiter in queue if not waiter.refused] or (queue if now >= self._next_round else [])
        return self._first_of(asked)

    def _first_of(self, waiters: list[Waiter]) -> Key | None:
        return next(iter(min(waiters, key=self._order).sandboxes.values())) if waiters else None

    def _giver(self) -> tuple[Key, Key] | None:
        """Return the pool that has to give a warm sandbox up now, and for whom.

        The one that has most of what it wants. It gives its last one to claims alone, and only where all have but one:
        so two pools never take from each other in turns.
        """
        now = self._clock()
        for waiter in sorted(self._waiters.values(), key=self._order):
            has_some = waiter.key in self._pools and self._placed(waiter.key) > 0
            may_find_room = not (waiter.for_node or waiter.refused)
            if has_some or may_find_room or waiter.hopeless or now < waiter.next_gift:
                continue
            least = 2 if waiter.key.kind == POOLS.kind else 1
            givers = [share for key, share in self._pools.items() if key != waiter.key and share.ready >= least]
            if givers:
                return max(givers, key=lambda each: (each.ready > 1, self._level(each.key), each.key)).key, waiter.key
        return None

    def _offer(self) -> None:
        """Wake whoever has the turn, or will have it, and whoever has to give a place up."""
        if not self._waiters:
            return
        if (turn := self._turn()) is not None:
            self._queue.add(turn)
        elif (first := self._first_of(self._for_quota())) is not None:
            at = max(self._rests_until, self._next_round) if self._all_refused() else self._rests_until
            self._queue.add_at(first, at)
        if (giver := self._giver()) is not None:
            self._queue.add(giver[0])

    def _wake_pools(self, *, but: Key | None = None) -> None:
        for key in self._pools:
            if key != but:
                self._queue.add(key)
