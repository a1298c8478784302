"""What all gateways use together, added up when their documents come. Pure."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from sandpod_gateway.usage.amounts import Account, Amounts, Scope
from sandpod_gateway.usage.document import Day, Document
from sandpod_gateway.usage.live import Live, Window


class DaySums:
    """What each scope has used on one day."""

    def __init__(self, day: Day = "") -> None:
        self.day = day
        self._sums: dict[Scope, Amounts] = {}

    def add(self, account: Account, amounts: Amounts) -> None:
        """Add amounts of the day."""
        for scope in account.scopes():
            self._sums.setdefault(scope, Amounts()).add(amounts)

    def of(self, scope: Scope) -> Amounts:
        """Return the sum of a scope."""
        return self._sums.get(scope) or Amounts()

    @classmethod
    def over(cls, documents: Collection[Document], day: Day) -> "DaySums":
        """Return the sums of a day's rows."""
        sums = cls(day)
        for document in documents:
            for (of, account), amounts in document.rows.items():
                if of == day:
                    sums.add(account, amounts)
        return sums


class ScopeCounts(Counter[Scope]):
    """How many of something each scope has."""

    def add(self, account: Account, number: int) -> None:
        """Count so many more for an account, or less; no zeros are kept."""
        for scope in account.scopes():
            self[scope] += number
            if not self[scope]:
                del self[scope]


@dataclass(eq=False)
class Others:
    """What the callers of all other gateways use."""

    documents: list[Document] = field(default_factory=list)
    runs: ScopeCounts = field(default_factory=ScopeCounts)
    calls: dict[Scope, Window] = field(default_factory=dict)
    sandboxes: dict[str, Account] = field(default_factory=dict)

    def take(self, accounts: dict[Account, Live], *, is_alive: bool) -> None:
        """Add what one gateway has published; of one that has gone only its sandboxes are still there."""
        for account, each in accounts.items():
            self.sandboxes |= dict.fromkeys(each.sandboxes, account)
            if is_alive:
                self.runs.add(account, each.runs)
                for scope in account.scopes():
                    known = self.calls.get(scope, Window()).buckets + each.calls.buckets
                    self.calls[scope] = Window(dict(sorted(known.items())))
