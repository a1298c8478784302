"""Who gets a place while a namespace's quota is full: claims first, then the pool that has the least of what it wants.

Called by `turns.py`, which keeps a line for each namespace. Pure: it knows no client, no clock and no objects.

Only the API server knows what fits, so it is asked, by making a pod. Nobody waits while it refuses nothing. As soon as
it has refused a pod, whoever wants one waits in the line, and one at a time has the turn:

- Let in: it leaves the line, and the next one has the turn. When nobody is left, pods are made at once again.
- Refused: the turn passes on, and it is not asked again before the next sign of room: a pod that left, or time. So a
  place costs at most one refusal of each, and one that no place is large enough for holds up nobody.
- The quota counts a pod for a moment after it is gone, so a refusal in that moment says nothing: the line rests, and
  the same one has the turn again. Else whoever asks as that moment ends would get the place. It does not rest for one
  that others have overtaken before: there is no place that is large enough for it.

A refused claim, whose caller waits, gets a place that a pool gives up; so does a pool that has nothing. They are first
in the line, so the giver does not take it back. Nothing is given up for what is larger than the whole quota. A claim
that no node takes waits here too, for such a place alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from sandpod_kube.resources import POOLS, Key
from sandpod_operator.model.observed import Share
from sandpod_operator.status.failures import exceeds_whole_quota

SETTLES: Final = timedelta(seconds=3)
"""Time after a pod left in which the quota may still count it. It takes tens of milliseconds on an idle cluster."""
REST: Final = timedelta(seconds=1)
LEAVES: Final = timedelta(seconds=10)
"""Longest wait for a pod that is given up to leave, before others are asked."""
GIVES_AGAIN: Final = timedelta(seconds=60)
"""Wait before one more warm sandbox is given up for somebody whom the first did not help; doubles."""
NODES_YIELD: Final = timedelta(seconds=10)
"""Time for which a claim that no node takes keeps pools' pods out of the scheduler's queue. Callers wait that long."""
_MAX_DOUBLINGS: Final = 6
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(kw_only=True, slots=True)
class Waiter:
    """A claim or a pool that waits for a place.

    Attributes:
        key: The claimed Sandbox's, or the pool's.
        since: When it began to wait.
        for_node: Whether it has its place in the quota, and no node takes it.
        sandboxes: Those that wait, by uid: a claim's only one, or some of a pool's.
        asked: Whether it had its turn since the last sign of room.
        overtaken: Whether somebody found room after it was refused: what fits others is too small for it.
        hopeless: Whether it asks for more than the whole quota, so that no place that is given up would help.
        given: How many warm sandboxes were given up for it, in vain so far.
        given_at: When the last was.
    """

    key: Key
    since: datetime
    for_node: bool = False
    sandboxes: dict[str, Key] = field(default_factory=dict)
    asked: bool = False
    overtaken: bool = False
    hopeless: bool = False
    given: int = 0
    given_at: datetime = _LONG_AGO

    @property
    def is_claim(self) -> bool:
        """Whether a caller waits."""
        return self.key.kind != POOLS.kind

    @property
    def asks_again_at(self) -> datetime:
        """When one more warm sandbox may be given up for it."""
        doublings = min(self.given - 1, _MAX_DOUBLINGS)
        return self.given_at + GIVES_AGAIN * 2**doublings if self.given else _LONG_AGO


@dataclass(kw_only=True, slots=True)
class Line:
    """Who waits for a place in one namespace.

    Attributes:
        retry: Seconds until those who were all refused are asked again; doubles while nothing else is a sign of room.
        longest: The most that it grows to.
        waiters: By key.
        whose: The key of who waits, by the uids of its sandboxes.
        expects_until: A place that was given up for somebody is on its way until then, or until a pod left.
        message: What the quota said last.
        rounds: How often all were refused, one after the other, since there was another sign of room than time.
        next_round: When time is a sign of room.
        settles_at: When the quota has surely seen that a pod left.
        rests_until: Nobody has the turn before.
    """

    retry: float
    longest: float
    waiters: dict[Key, Waiter] = field(default_factory=dict)
    whose: dict[str, Key] = field(default_factory=dict)
    expects_until: datetime = _LONG_AGO
    message: str = ""
    rounds: int = 0
    next_round: datetime = _LONG_AGO
    settles_at: datetime = _LONG_AGO
    rests_until: datetime = _LONG_AGO

    def _in_quota(self) -> list[Waiter]:
        return [waiter for waiter in self.waiters.values() if not waiter.for_node]

    @property
    def has_turns(self) -> bool:
        """Whether pods are made in turn."""
        return any(not waiter.for_node for waiter in self.waiters.values())

    def waits(self, uid: str, *, for_node: bool = False) -> bool:
        """Tell whether a sandbox waits for a place in the quota, or for a node."""
        return uid in self.whose and self.waiters[self.whose[uid]].for_node == for_node

    def join(self, waiter: Waiter, uid: str, sandbox: Key) -> None:
        """Have a sandbox wait, behind the others of its pool.

        Args:
            waiter: Who waits, as long as it is not known.
            uid: The sandbox's.
            sandbox: Its key.
        """
        if self.whose.get(uid) != waiter.key or not self.waits(uid, for_node=waiter.for_node):
            self.leave(uid)
            self.whose[uid] = waiter.key
            known = self.waiters.setdefault(waiter.key, waiter)
            known.sandboxes[uid] = sandbox
            # A pool that comes now, as the one that gave the place up, must not be the one that finds it.
            known.asked |= waiter.since < self.expects_until and not known.is_claim

    def leave(self, uid: str) -> None:
        """Take out a sandbox that does not wait any more, whatever for."""
        if uid in self.whose:
            waiter = self.waiters[self.whose.pop(uid)]
            del waiter.sandboxes[uid]
            if not waiter.sandboxes:
                del self.waiters[waiter.key]

    def let_in(self, uid: str) -> None:
        """Note that a sandbox has its pod."""
        self.rounds = 0
        for waiter in self._in_quota():
            waiter.overtaken |= waiter.asked
        if uid in self.whose:
            self.waiters[self.whose[uid]].given = 0
            self.leave(uid)

    def refused(self, uid: str, message: str, now: datetime) -> None:
        """Note that the quota refused the pod of a sandbox that waits."""
        self.message = message
        waiter = self.waiters[self.whose[uid]]
        waiter.hopeless = exceeds_whole_quota(message)
        if now < self.settles_at and not waiter.overtaken:
            self.rests_until = now + REST
        else:
            self.pass_on(uid, now)

    def pass_on(self, uid: str, now: datetime) -> None:
        """End a sandbox's turn, if it waits."""
        if uid not in self.whose:
            return
        self.waiters[self.whose[uid]].asked = True
        if self._all_asked():
            self.next_round = now + timedelta(seconds=min(self.longest, self.retry * 2 ** min(self.rounds, 16)))
            self.rounds += 1

    def _all_asked(self) -> bool:
        return all(waiter.asked for waiter in self._in_quota())

    def pod_left(self, now: datetime) -> None:
        """Note that there may be room."""
        if self._all_asked():
            # Not while somebody is still to be asked: where pods leave all the time the line would rest for ever.
            self.settles_at = now + SETTLES
        self.rounds = 0
        self.expects_until = _LONG_AGO
        self._begin_round()

    def _begin_round(self) -> None:
        for waiter in self.waiters.values():
            waiter.asked = False

    def turn(self, shares: Mapping[Key, Share], now: datetime) -> Key | None:
        """Return the sandbox that may try for a place now, if any."""
        waiting = self._in_quota()
        if now < self.rests_until or not waiting:
            return None
        if self._all_asked():
            if now < max(self.next_round, self.expects_until):
                return None
            self._begin_round()
        first = next(waiter for waiter in _in_order(waiting, shares) if not waiter.asked)
        return next(iter(first.sandboxes.values()))

    def wakes_at(self, now: datetime) -> datetime:
        """Return when somebody who does not have the turn should look again."""
        if now < self.rests_until:
            return self.rests_until
        return max(self.next_round, self.expects_until) if self._all_asked() else now + REST

    def giver(self, shares: Mapping[Key, Share], now: datetime) -> tuple[Key, Key] | None:
        """Return the pool that has to give a warm sandbox up now, and for whom.

        The one that has most of what it wants. It gives its last one to claims alone, and only where all have but one:
        so two pools never take from each other in turns.
        """
        for waiter in _in_order(self.waiters.values(), shares):
            least = 1 if waiter.is_claim else 2
            has_some = waiter.key in shares and shares[waiter.key].placed > 0
            to_be_asked = not (waiter.for_node or waiter.asked)
            if has_some or to_be_asked or waiter.hopeless or now < waiter.asks_again_at:
                continue
            givers = [share for share in shares.values() if share.key != waiter.key and share.ready >= least]
            if givers:
                return max(givers, key=lambda share: (share.ready > 1, share.level, share.key)).key, waiter.key
        return None

    def gave(self, who: Key, now: datetime) -> None:
        """Note that a pool gives a warm sandbox up for somebody."""
        if who in self.waiters:
            waiter = self.waiters[who]
            waiter.given, waiter.given_at = waiter.given + 1, now
            self.expects_until = now + LEAVES

    def gave_none(self, who: Key) -> None:
        """Note that the pool had none after all."""
        self.expects_until = _LONG_AGO
        if who in self.waiters:
            self.waiters[who].given, self.waiters[who].given_at = 0, _LONG_AGO

    def nodes_yield_until(self) -> datetime:
        """Return until when claims go before pools in the scheduler's queue."""
        return max((w.since for w in self.waiters.values() if w.for_node), default=_LONG_AGO) + NODES_YIELD


def _in_order(waiters: Iterable[Waiter], shares: Mapping[Key, Share]) -> list[Waiter]:
    def order(waiter: Waiter) -> tuple[int, float, Key]:
        if waiter.is_claim:
            return 0, waiter.since.timestamp(), waiter.key
        return 1, shares[waiter.key].level if waiter.key in shares else 1.0, waiter.key

    return sorted(waiters, key=order)
