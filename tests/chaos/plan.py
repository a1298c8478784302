"""What goes wrong in which round: chosen by a seed alone, so that the same seed does the same again. Pure."""

import random
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

MOST: Final = 3  # faults of one round


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault.

    Attributes:
        needs: What it can't be done without, as `world.abilities` names it.
        ends: Whether it may end sandboxes that have no persistent workspace.
        seconds: The shortest and the longest time until it is undone; one that is over at once has none.
    """

    needs: frozenset[str] = frozenset()
    ends: bool = False
    seconds: tuple[float, float] = (0, 0)


def _kind(*needs: str, ends: bool = False, seconds: tuple[float, float] = (0, 0)) -> Kind:
    return Kind(needs=frozenset(needs), ends=ends, seconds=seconds)


FAULTS: Final = {
    "operator killed": _kind("nodes"),
    "gateway killed": _kind("nodes"),
    "operator pods deleted": _kind(),
    "gateway pods deleted": _kind(),
    "API server killed": _kind("nodes"),
    "API server paused": _kind("nodes", seconds=(3, 20)),
    "etcd's disk slow": _kind("nodes", "strace", seconds=(10, 30)),
    "kubelet stopped": _kind("nodes", seconds=(10, 30)),
    "kubelet killed": _kind("nodes"),
    "containerd restarted": _kind("nodes"),
    "node drained": _kind("nodes", "second node", ends=True, seconds=(5, 20)),
    "node cut off": _kind("nodes", "second node", ends=True, seconds=(10, 30)),
    "policy agent stopped": _kind("nodes", ends=True, seconds=(5, 15)),
    "clients' streams cut": _kind(),
    "clients' streams stalled": _kind(seconds=(3, 15)),
    "clients' streams delayed": _kind(seconds=(5, 15)),
    "gateway's API streams cut": _kind("nodes", seconds=(1, 3)),
    "gateway's API streams stalled": _kind("nodes", seconds=(5, 30)),
    "gateway's clock jumps": _kind("clock", seconds=(5, 15)),
    "operator's clock jumps": _kind("clock", seconds=(5, 15)),
    "node's disk full": _kind("nodes", ends=True, seconds=(10, 25)),
    "audit's disk full": _kind("audit", seconds=(5, 15)),
    "sandbox's pod deleted": _kind(ends=True),
    "sandbox's pod evicted": _kind(ends=True),
}
"""All of them, by name."""


@dataclass(frozen=True)
class Fault:
    """One fault of a round.

    Attributes:
        after: Seconds from the round's beginning.
        seconds: How long it lasts.
        pick: Which of several targets it is: a number of any size.
    """

    name: str
    after: float
    seconds: float
    pick: int

    def record(self) -> dict[str, Any]:
        """Return it as it stands in a history."""
        return asdict(self)


def possible(abilities: Collection[str]) -> list[str]:
    """Return the faults that can be done with these abilities."""
    return [name for name, kind in FAULTS.items() if kind.needs <= set(abilities)]


def rounds(seed: int, names: Collection[str]) -> Iterator[tuple[Fault, ...]]:
    """Yield the faults of each round, without an end.

    They are dealt like cards: each comes once before any of them comes again.
    """
    chosen = random.Random(seed)  # noqa: S311 - the same again is what it is for
    deck: list[str] = []
    while True:
        count = min(chosen.randint(1, MOST), len(names))
        faults: dict[str, Fault] = {}
        while len(faults) < count:
            if not deck:
                deck = sorted(names)
                chosen.shuffle(deck)
            # One that is in this round already is left for the next.
            name = next((each for each in deck if each not in faults), None)
            if name is None:
                break
            deck.remove(name)
            seconds = round(chosen.uniform(*FAULTS[name].seconds), 1)
            faults[name] = Fault(name, round(chosen.uniform(0, 5), 1), seconds, chosen.getrandbits(32))
        yield tuple(faults.values())
