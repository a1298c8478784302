"""Who gets a place while a namespace's quota is full: claims first, then the pool with the smallest share.

Only the API server knows what fits, so it is asked, by creating a pod. Nobody waits while it refuses nothing. As soon
as it has refused a pod, whoever wants one waits in the line, and one at a time has the turn:

- Let in: it leaves the line, and the next one has the turn. When nobody is left, pods are created at once again.
- Refused: the turn passes on, and it is not asked again before the next sign of room: a pod that left, or time. So a
  place costs at most one refusal of each, and one that no place is large enough for holds up nobody.
- The quota counts a pod for a moment after it is gone, so a refusal in that moment says nothing: the line rests, and
  the same one has the turn again. Otherwise whoever asks as that moment ends would get the place.

A refused claim, whose caller waits, gets a place that a pool gives up; so does a pool that has nothing. They are first
in the line, and the line rests until that pod has left, so the giver does not take it back. Nothing is given up for
what is larger than the whole quota. A claim that no node takes waits here too, for such a place alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from sandpod_kube.resources import POOLS, Key
from sandpod_operator.model.observed import Share
from sandpod_operator.status.failures import exceeds_whole_quota

# After a pod left, while the quota may still count it: tens of milliseconds on an idle cluster, seconds on a busy one.
SETTLES: Final = timedelta(seconds=10)
REST: Final = timedelta(seconds=1)  # between two tries meanwhile
LEAVES: Final = timedelta(seconds=10)  # longest wait for a pod that is given up to leave, before anybody is asked
GIVES_AGAIN: Final = timedelta(seconds=60)  # before the next gift to somebody whom the first did not help; doubles
# How long a claim that no node takes keeps pools' pods out of the scheduler's queue. Callers wait that long.
NODES_YIELD: Final = timedelta(seconds=10)
_MAX_DOUBLINGS: Final = 6
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(kw_only=True, slots=True)
class Waiter:
    """A claim or a pool that waits for a place."""

    key: Key  # the claimed Sandbox's, or the pool's
    since: datetime
    for_node: bool = False  # whether it has its place in the quota, and no node takes it
    sandboxes: dict[str, Key] = field(default_factory=dict)  # by uid: a claim's only one, or some of a pool's
    refused: bool = False  # since the last sign of room
    hopeless: bool = False  # it asks for more than the whole quota, so no place that is given up would help
    gifts: int = 0  # warm sandboxes that were given up for it, in vain so far
    next_gift: datetime = _LONG_AGO  # when one more may be

    @property
    def is_claim(self) -> bool:
        """Whether a caller waits."""
        return self.key.kind != POOLS.kind

    def order(self, shares: Mapping[Key, Share]) -> tuple[int, float, Key]:
        """Return its sort key among the waiters."""
        if self.is_claim:
            return 0, self.since.timestamp(), self.key
        return 1, shares[self.key].level if self.key in shares else 1.0, self.key


@dataclass(kw_only=True, slots=True)
class Line:
    """Who waits for a place in one namespace."""

    retry: float  # seconds until those who were all refused are asked again; doubles while only time is a sign of room
    longest: float  # the most that it grows to
    waiters: dict[Key, Waiter] = field(default_factory=dict)
    whose: dict[str, Waiter] = field(default_factory=dict)  # by the uids of their sandboxes
    message: str = ""  # what the quota said last
    rounds: int = 0  # how often all were refused, one after the other, since there was another sign of room than time
    next_round: datetime = _LONG_AGO  # when all who were refused are asked again
    settles_at: datetime = _LONG_AGO  # when the quota has surely noticed that a pod left
    rests_until: datetime = _LONG_AGO  # nobody has the turn before

    @property
    def queue(self) -> list[Waiter]:
        """Those who wait for a place in the quota. While there are any, pods are created in turn."""
        return [waiter for waiter in self.waiters.values() if not waiter.for_node]

    def join(self, key: Key, uid: str, sandbox: Key, now: datetime, *, for_node: bool = False) -> None:
        """Add a sandbox to the claim or pool with that key, behind its others; it waits for one thing only."""
        known = self.whose.get(uid)
        if known is None or (known.key, known.for_node) != (key, for_node):
            self.leave(uid)
            known = self.waiters.setdefault(key, Waiter(key=key, since=now, for_node=for_node))
            known.sandboxes[uid] = sandbox
            self.whose[uid] = known

    def leave(self, uid: str) -> None:
        """Remove a sandbox that no longer waits, whatever it waited for."""
        waiter = self.whose.pop(uid, None)
        if waiter is not None:
            del waiter.sandboxes[uid]
            if not waiter.sandboxes:
                del self.waiters[waiter.key]

    def let_in(self, uid: str) -> None:
        """Note that a sandbox has its pod."""
        self.rounds = 0
        if uid in self.whose:
            self.whose[uid].gifts, self.whose[uid].next_gift = 0, _LONG_AGO
            self.leave(uid)

    def refused(self, uid: str, message: str, now: datetime) -> None:
        """Note that the quota refused the pod of a sandbox that waits."""
        self.message = message
        self.whose[uid].hopeless = exceeds_whole_quota(message)
        if now < self.settles_at and not self.whose[uid].hopeless:
            self.rests_until = now + REST
        else:
            self.pass_on(uid, now)

    def pass_on(self, uid: str, now: datetime) -> None:
        """End a sandbox's turn, if it waits."""
        if uid not in self.whose:
            return
        if self._all_refused():
            self._begin_round()  # Time was the sign of room.
        self.whose[uid].refused = True
        if self._all_refused() and now >= self.next_round:  # Those who come meanwhile don't put it off.
            self.next_round = now + timedelta(seconds=min(self.longest, self.retry * 2 ** min(self.rounds, 16)))
            self.rounds += 1

    def pod_left(self, now: datetime) -> None:
        """Note that there may be room."""
        if self._all_refused():
            # Not while somebody is still to be asked: where pods leave all the time the line would rest for ever.
            self.settles_at = now + SETTLES
        self.rounds, self.rests_until, self.next_round = 0, now, now
        self._begin_round()

    def _all_refused(self) -> bool:
        return all(waiter.refused for waiter in self.queue)

    def _begin_round(self) -> None:
        for waiter in self.waiters.values():
            waiter.refused = False

    def turn(self, shares: Mapping[Key, Share], now: datetime) -> Key | None:
        """Return the sandbox that may try for a place now, if any."""
        queue = self.queue if now >= self.rests_until else []
        asked = [waiter for waiter in queue if not waiter.refused] or (queue if now >= self.next_round else [])
        return _first_sandbox(asked, shares)

    def wakes(self, shares: Mapping[Key, Share]) -> tuple[Key, datetime] | None:
        """Return the sandbox to look at next while none has the turn, and when; None where nobody waits."""
        at = max(self.rests_until, self.next_round) if self._all_refused() else self.rests_until
        first = _first_sandbox(self.queue, shares)
        return (first, at) if first is not None else None

    def giver(self, shares: Mapping[Key, Share], now: datetime) -> tuple[Key, Key] | None:
        """Return the pool that has to give a warm sandbox up now, and for whom.

        The one that has most of what it wants. It gives its last one to claims alone, and only where all have but one:
        so two pools never take from each other in turns.
        """
        for waiter in sorted(self.waiters.values(), key=lambda each: each.order(shares)):
            has_some = waiter.key in shares and shares[waiter.key].placed > 0
            may_find_room = not (waiter.for_node or waiter.refused)
            if has_some or may_find_room or waiter.hopeless or now < waiter.next_gift:
                continue
            least = 1 if waiter.is_claim else 2
            givers = [share for share in shares.values() if share.key != waiter.key and share.ready >= least]
            if givers:
                return max(givers, key=lambda share: (share.ready > 1, share.level, share.key)).key, waiter.key
        return None

    def gave(self, who: Key, now: datetime) -> None:
        """Note that a pool has given a warm sandbox up for somebody, whose pod is about to leave."""
        if (waiter := self.waiters.get(who)) is not None:
            waiter.next_gift = now + GIVES_AGAIN * 2 ** min(waiter.gifts, _MAX_DOUBLINGS)
            waiter.gifts += 1
            self.rests_until = now + LEAVES

    def nodes_yield_until(self) -> datetime:
        """Return until when claims go first in the scheduler's queue."""
        return max((w.since for w in self.waiters.values() if w.for_node), default=_LONG_AGO) + NODES_YIELD


def _first_sandbox(waiters: list[Waiter], shares: Mapping[Key, Share]) -> Key | None:
    first = min(waiters, key=lambda each: each.order(shares), default=None)
    return next(iter(first.sandboxes.values())) if first is not None else None
