"""Who gets a place while a namespace's quota is full: claims first, then the pool that has the least of what it wants.

Called by `plan_pool.py`, which asks how many sandboxes a pool may make now, and by `controller.py`, which wakes whoever
is next. Pure.

A place that shows itself (a pod left, or one was let in after a refusal) is offered to one at a time, in that order,
until everyone who wants it was refused since. So none grabs what another has less of, one that no place is large enough
for holds up nobody, and each place costs at most one refusal of each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandpod_operator.resources import Key

FIRST_BATCH: Final = 4
"""Sandboxes that a pool makes before it knows how the first do; then as many again as do well."""
_GIVE_AGAIN: Final = timedelta(seconds=60)
"""Wait before a warm sandbox is given up once more for the same one, to whom the first did not help; doubles."""
_MAX_DOUBLINGS: Final = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A claimed sandbox whose pod the quota refused.

    Attributes:
        key: The Sandbox's.
        uid: The same.
        since: The first refusals come first.
        tried: The namespace's `room` when it was last refused.
    """

    key: Key
    uid: str
    since: datetime
    tried: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What a pool has of what it wants.

    Attributes:
        key: The pool's.
        uid: The same.
        wish: Warm sandboxes that it should have.
        placed: Those that have a place, working or not.
        ready: Those that can be claimed.
        pending: Those that were made, and nothing is known of yet.
        missing: Those that it could make now.
        refused: The one that the quota refused and that is tried again, if any.
        tried: The namespace's `room` when one of its was last refused; -1 for never.
        unscheduled: Those that no node takes.
    """

    key: Key
    uid: str
    wish: int
    placed: int = 0
    ready: int = 0
    pending: int = 0
    missing: int = 0
    refused: Key | None = None
    tried: int = -1
    unscheduled: int = 0

    @property
    def level(self) -> float:
        """How much it has of what it wants."""
        return self.placed / self.wish if self.wish else 1.0

    @property
    def wants(self) -> bool:
        """Whether it would take one more place."""
        return self.missing > 0 or self.refused is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    """Who shares a namespace's quota and nodes.

    Attributes:
        pools: The pools' shares.
        claims: Claimed sandboxes that the quota keeps waiting.
        unplaced: How many claimed sandboxes no node takes.
        room: Grows with every sign that there may be room.
        tight: Whether the quota has refused something, and not all have had what they want since.
    """

    pools: Sequence[Share] = ()
    claims: Sequence[Claim] = ()
    unplaced: int = 0
    room: int = 0
    tight: bool = False

    @property
    def satisfied(self) -> bool:
        """Whether nobody waits for a place in the quota."""
        return not self.claims and not any(pool.wants or pool.pending for pool in self.pools)

    def next_claim(self) -> Claim | None:
        """Return the claim whose turn it is."""
        waiting = [claim for claim in self.claims if claim.tried < self.room]
        return min(waiting, key=lambda claim: (claim.since, claim.key), default=None)

    def next_pool(self) -> Share | None:
        """Return the pool whose turn it is, unless it is a claim's."""
        waiting = [p for p in self.pools if p.pending or (p.wants and p.tried < self.room)]
        return min(waiting, key=_order, default=None) if self.next_claim() is None else None


def _order(pool: Share) -> tuple[float, Key]:
    return pool.level, pool.key


def may_make(own: Share, others: Neighbours) -> int:
    """Return how many sandboxes a pool may make now.

    Args:
        own: Its share.
        others: All of the namespace, itself among them.
    """
    if others.tight:
        turn = others.next_pool()
        mine = turn is not None and turn.key == own.key and not (own.pending or own.refused)
        return min(1, own.missing) if mine else 0
    batch = max(FIRST_BATCH, own.placed) - own.pending
    if own.unscheduled or others.unplaced:
        batch = min(batch, may_wait(own, others) - own.unscheduled - own.pending)
    return max(0, min(batch, own.missing))


def may_wait(own: Share, others: Neighbours) -> int:
    """Return how many of a pool's sandboxes may wait for a node: the scheduler knows no pools and no claims.

    A pool that shares the nodes with no other has several wait, since autoscalers of nodes go by them.
    """
    if others.unplaced:
        return 0
    alone = not any(p.missing or p.unscheduled for p in others.pools if p.key != own.key)
    return max(FIRST_BATCH, own.placed) if alone else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """For whom warm sandboxes were given up, and did not help yet: how often, and when last."""

    times: int
    last: datetime


def to_give(others: Neighbours, given: Mapping[str, Given], now: datetime) -> tuple[Share, str] | None:
    """Return the pool that has to give one warm sandbox up now, and the uid of whom it is for.

    For a claim, whose caller waits, and for a pool that has none at all, the richest gives one up. Its last one a pool
    gives to claims alone, and only if all have but one: two pools never take from each other in turns.

    Args:
        others: All of the namespace.
        given: What was given up before, by uid.
        now: The time.
    """
    # Only for whom there was no room at its last sign: whoever has nothing is among the first to try.
    claims = [c for c in others.claims if c.tried >= others.room]
    pools = [p for p in others.pools if p.refused is not None and p.tried >= others.room and not p.placed]
    needy = [(claim.uid, 1) for claim in sorted(claims, key=lambda c: (c.since, c.key))]
    needy += [(pool.uid, 2) for pool in sorted(pools, key=_order)]
    for uid, least in needy:
        givers = [p for p in others.pools if p.uid != uid and p.ready >= least]
        if givers and _may_ask(given.get(uid), now):
            return max(givers, key=lambda p: (p.ready > 1, p.level, p.ready, p.key)), uid
    return None


def _may_ask(before: Given | None, now: datetime) -> bool:
    return before is None or now >= asks_again(before)


def asks_again(before: Given) -> datetime:
    """Return when one more warm sandbox may be given up for the same one."""
    doubled: int = 2 ** min(before.times - 1, _MAX_DOUBLINGS)
    return before.last + _GIVE_AGAIN * doubled
