"""Who waits for a place, and since when."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal

from sandpod_kube.resources import POOLS, Key

LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(kw_only=True, slots=True)
class Waiter:
    """A claim or a pool that waits for a place."""

    key: Key  # the claimed Sandbox's, or the pool's
    since: datetime
    ranks_since: datetime  # the same, or when another claim of its owner was let in
    owner: str = ""  # of the claim
    for_node: bool = False  # whether it has its place in the quota, and no node takes it
    sandboxes: dict[str, Key] = field(default_factory=dict)  # by uid: a claim's only one, or some of a pool's
    refused: bool = False  # since the last sign of room
    hopeless: bool = False  # it asks for more than the whole quota, so no place that is given up would help
    gifts: int = 0  # warm sandboxes that were given up for it, in vain so far
    next_gift: datetime = LONG_AGO  # when one more may be

    @property
    def labels(self) -> tuple[Literal["pool", "claim"], Literal["node", "quota"]]:
        """What metrics call it, and what it lacks."""
        return "pool" if self.key.kind == POOLS.kind else "claim", "node" if self.for_node else "quota"
