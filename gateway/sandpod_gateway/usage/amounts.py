"""What is counted, and for whom. Pure.

All amounts are integers, so that sums are exact in whatever order documents are added.
"""

from dataclasses import dataclass, fields
from typing import Final, NamedTuple, Self

from sandpod_gateway.auth.callers import Caller, tenant_of, user_of

SECOND: Final = 1_000_000  # microseconds
GIB: Final = 2**30

Scope = tuple[str, ...]
"""A tenant, a tenant and a user, or these and a key: the beginning of an account."""


class Account(NamedTuple):
    """To whom something is charged."""

    tenant: str
    user: str
    key: str  # the key's name

    def scopes(self) -> tuple[Scope, Scope, Scope]:
        """Return the account's tenant, user and key, each with what it belongs to."""
        return self[:1], self[:2], self[:3]


OTHERS: Final = "(others)"
"""User of the rows that stand for all that a full document has no row for."""


def account_of(caller: Caller) -> Account:
    """Return to whom a caller's use is charged."""
    return Account(tenant_of(caller.owner), user_of(caller.owner), caller.key)


@dataclass(slots=True)
class Amounts:
    """What was used. Times are microseconds, sizes bytes."""

    cpu: int = 0  # processor time of runs that ended
    memory: int = 0  # GiB of the template's memory limit, times the microseconds that the sandbox had it
    wall: int = 0  # time from claim to end, but for time suspended
    busy: int = 0  # part of it in which a run was going on
    bytes_in: int = 0  # code, input, and files put into sandboxes
    bytes_out: int = 0  # output, and files read from sandboxes
    uploads: int = 0  # files among bytes_in
    runs: int = 0  # runs that ended
    calls: int = 0  # calls of tools and reads of resources

    def add(self, other: "Amounts") -> None:
        """Add others to these."""
        # Each by itself: a loop over names takes five times as long, and each call adds five times.
        self.cpu += other.cpu
        self.memory += other.memory
        self.wall += other.wall
        self.busy += other.busy
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.uploads += other.uploads
        self.runs += other.runs
        self.calls += other.calls

    def less(self, other: "Amounts") -> "Amounts":
        """Return these without others, of which they are the sum so far."""
        return Amounts(*(getattr(self, name) - getattr(other, name) for name in COLUMNS))

    def values(self) -> list[int]:
        """Return them in their order, for a document."""
        return [getattr(self, name) for name in COLUMNS]

    @classmethod
    def of(cls, values: list[int]) -> Self:
        """Return what `values` gave. Raises ValueError: they are none; a later version may have more."""
        if len(values) < len(COLUMNS) or not all(type(value) is int for value in values):
            raise ValueError("these are no amounts")
        return cls(*values[: len(COLUMNS)])

    def __bool__(self) -> bool:
        return any(self.values())


COLUMNS: Final = tuple(field.name for field in fields(Amounts))
