"""How many sandboxes of a pool may be starting at once, judging by how its last ones did.

A pool begins with a few. Each that gets ready doubles what may be under way, so a pool that works is filled at once.
One that fails, or that no node takes, brings it down to one, and one that the quota refuses to a few: what is wrong
with some is likely wrong with the next. So a broken template costs a few pods, whatever the pool's size.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

FIRST: Final = 4
_MOST: Final = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolBackoff:
    """How a pool's sandboxes have done."""

    template: str = ""  # the hash of the template that they were made from
    window: int = FIRST  # how many may be under way
    proven: bool = False  # whether one was ever ready
    good: frozenset[str] = frozenset()  # names of those that were seen ready
    bad: frozenset[str] = frozenset()  # names of those that were seen to fail, or that no node takes

    def after(
        self, template: str | None, *, good: Collection[str], bad: Collection[str], refused: bool
    ) -> "PoolBackoff":
        """Return the back-off after what is observed now, of the template with that hash; another one begins anew.

        Args:
            template: None while there is none.
            good: Names of the sandboxes of it that are ready.
            bad: Names of those that can't start.
            refused: Whether the quota keeps some waiting.
        """
        if template is None:
            return self
        before = self if self.template == template else PoolBackoff(template=template)
        all_good, all_bad = frozenset(good), frozenset(bad)
        window = min(_MOST, before.window * 2 ** min(len(all_good - before.good), 10))
        if refused:
            window = min(window, FIRST)
        if all_bad - before.bad:
            window = 1
        proven = before.proven or bool(good)
        return PoolBackoff(template=template, window=window, proven=proven, good=all_good, bad=all_bad)
