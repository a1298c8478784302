"""What one gateway has counted, as it is kept: rows by day and account, and the sandboxes that it accounts for. Pure.

Each gateway is the only writer of its document. When it has gone, another one folds the document into its own and
lists it in `folded`, in one write; from then on the other document counts no more, whether it is deleted or not. So a
sum over all documents that are in no other's `folded` is right at any moment, whoever dies when.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from sandpod_gateway.usage.amounts import OTHERS, SECOND, Account, Amounts
from sandpod_gateway.usage.live import parsed

MAX_BYTES: Final = 900_000
"""Of a document; the API server takes 1 MiB, and metadata comes on top."""
MAX_ROWS: Final = 5000
MAX_SANDBOXES: Final = 1000
MAX_KEYS: Final = 2000
MAX_BACKGROUND: Final = 1000
MAX_ATTENDED: Final = 500
"""Runs that a document has of all kinds where one more is added that a call waits for: others come first."""
MAX_LATE: Final = 2000
DAY_SECONDS: Final = 86_400
_VERSION: Final = 1

Day = str
"""As 2026-11-30, UTC."""


def day_of(time: float) -> Day:
    """Return the day of a time in seconds since 1970."""
    return _day(int(time // DAY_SECONDS))


@lru_cache(8)
def _day(number: int) -> Day:
    return datetime.fromtimestamp(number * DAY_SECONDS, UTC).date().isoformat()


@dataclass(slots=True)
class SandboxUse:
    """One sandbox, as far as one gateway counts for it. Times are microseconds since 1970."""

    account: Account  # whose claim it is
    template: str
    began: int  # when it was claimed, or first seen
    until: int | None = None  # up to when its time is counted, while this document is the one that counts it
    expires: int = 0  # when it ends if nobody uses it any more
    memory: int = 0  # bytes of the template's limit; 0 while that is not known
    amounts: Amounts = field(default_factory=Amounts)


@dataclass(frozen=True, slots=True)
class BackgroundRun:
    """A run whose end is not known yet, in the background or at a gateway that may have gone."""

    account: Account
    sandbox: str
    began: int  # microseconds since 1970
    ends: int  # at the latest
    out: int = 0  # bytes of output that are charged


Late = tuple[str, int, Day, Account, str]
"""A run, the document's `seq` when something was charged for it, and where: the day, the account and the sandbox."""


@dataclass(eq=False)
class Document:
    """What one gateway has counted. `lost_rows` counts rows that became part of others for want of room."""

    replica: str
    seq: int = 0  # of writes
    closed: bool = False  # whether the gateway has ended in good order
    folder: str | None = None  # the gateway that is about to fold it; then it has no other writer
    folded: dict[str, int] = field(default_factory=dict)  # documents that are in this one, with their last seq
    rows: dict[tuple[Day, Account], Amounts] = field(default_factory=dict)
    sandboxes: dict[str, SandboxUse] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)  # when a key was used last: minutes since 1970, by its id
    background: dict[str, BackgroundRun] = field(default_factory=dict)  # by the run's id
    late: dict[Late, Amounts] = field(default_factory=dict)  # not written: what may not be known to be in the store
    lost_rows: int = 0
    bounded: bool = True  # whether it is to be kept; one that is only read has room for all

    def charge(self, day: Day, account: Account, amounts: Amounts) -> None:
        """Add amounts to an account's row of a day."""
        row = self.rows.get((day, account))
        if row is None:
            row = self.rows[day, account] = self._new_row(day, account)
        row.add(amounts)

    def _new_row(self, day: Day, account: Account) -> Amounts:
        def is_full() -> bool:
            return self.bounded and len(self.rows) >= MAX_ROWS

        while is_full() and self._collapse(oldest_but=day):
            pass
        if is_full():
            self.lost_rows += 1
            return self.rows.setdefault((day, Account(account.tenant, OTHERS, "")), Amounts())
        return Amounts()

    def _collapse(self, oldest_but: Day | None = None) -> bool:
        """Make one row for each tenant of the oldest day that has more; return whether there was one."""
        for day in sorted({day for day, _ in self.rows} - {oldest_but}):
            many = [account for of, account in self.rows if of == day and account.user != OTHERS]
            if many:
                self.lost_rows += len(many)
                for account in many:
                    amounts = self.rows.pop((day, account))
                    self.rows.setdefault((day, Account(account.tenant, OTHERS, "")), Amounts()).add(amounts)
                return True
        return False

    @property
    def live(self) -> set[str]:
        """The sandboxes whose time it counts."""
        return {name for name, use in self.sandboxes.items() if use.until is not None}

    def used(self, name: str, use: SandboxUse) -> SandboxUse:
        """Return the row of a sandbox, which is `use` where there is none; the oldest that have ended make room."""
        known = self.sandboxes.get(name)
        if known is not None:
            return known
        if self.bounded and len(self.sandboxes) >= MAX_SANDBOXES:
            ended = next((each for each, row in self.sandboxes.items() if row.until is None), None)
            self.sandboxes.pop(ended or next(iter(self.sandboxes)))
        self.sandboxes[name] = use
        return use

    def key_used(self, key_id: str, minute: int) -> None:
        """Record when a key was used last."""
        if minute > self.keys.get(key_id, 0):
            self.keys.pop(key_id, None)
            self.keys[key_id] = minute  # the last used comes last
            if self.bounded and len(self.keys) > MAX_KEYS:
                del self.keys[next(iter(self.keys))]

    def remember(self, run: str, day: Day, account: Account, sandbox: str, amounts: Amounts) -> None:
        """Record what was charged for a run that the document has, or has had since it was written last.

        Whoever takes over an earlier state of the document charges that again, by the run's end.
        """
        self.late.setdefault((run, self.seq, day, account, sandbox), Amounts()).add(amounts)
        if len(self.late) > MAX_LATE:
            del self.late[next(iter(self.late))]

    def is_written(self) -> None:
        """Forget what was recorded before the last write."""
        self.late = {key: amounts for key, amounts in self.late.items() if key[1] >= self.seq}

    def fold(self, other: "Document") -> None:
        """Take in all of another document, which counts no more once this one is written."""
        for (day, account), amounts in other.rows.items():
            self.charge(day, account, amounts)
        for name, use in other.sandboxes.items():
            own = self.used(name, replace(use, until=None, amounts=Amounts()))
            own.amounts.add(use.amounts)
            own.began = min(own.began, use.began)
            if use.until is not None:
                own.account, own.until, own.expires, own.memory = use.account, use.until, use.expires, use.memory
        for key_id, minute in other.keys.items():
            self.key_used(key_id, minute)
        self.background |= other.background
        self.folded |= {**other.folded, other.replica: other.seq}

    def minus(self, base: "Document", replica: str) -> "Document":
        """Return the document of another name with what this one has in addition to an earlier state of it."""
        rest = Document(replica, keys=self.keys)
        for key, amounts in self.rows.items():
            more = amounts.less(base.rows.get(key, Amounts()))
            if more:
                rest.rows[key] = more
        for name, use in self.sandboxes.items():
            was = base.sandboxes.get(name)
            more = use.amounts.less(was.amounts) if was is not None else use.amounts
            if more or was is None:
                rest.sandboxes[name] = replace(use, amounts=more, until=use.until if was is None else None)
        rest.background = {run: of for run, of in self.background.items() if run not in base.background}
        for (run, seq, day, account, sandbox), amounts in self.late.items():
            if run in base.background and seq >= base.seq:
                less = Amounts().less(amounts)
                rest.charge(day, account, less)
                rest.used(sandbox, SandboxUse(account, "", 0)).amounts.add(less)
        return rest

    def drop(self, before: float) -> None:
        """Forget days, and sandboxes that have ended, that lie before a time in seconds since 1970."""
        day = day_of(before)
        self.rows = {key: amounts for key, amounts in self.rows.items() if key[0] >= day}
        kept = self.sandboxes.items()
        self.sandboxes = {name: use for name, use in kept if use.until is not None or use.began >= before * SECOND}

    def encode(self) -> bytes:
        """Return it as it is kept, with less detail where it is too large."""
        while len(content := self._dump()) > MAX_BYTES:
            ended = [name for name, use in self.sandboxes.items() if use.until is None]
            for name in ended[: len(ended) // 2 + 1]:
                del self.sandboxes[name]
            if not ended and not self._collapse():
                break
        return content

    def _dump(self) -> bytes:
        sandboxes = [
            [name, *use.account, use.template, use.began, use.until, use.expires, use.memory, use.amounts.values()]
            for name, use in self.sandboxes.items()
        ]
        plain = {
            "version": _VERSION,
            "replica": self.replica,
            "seq": self.seq,
            "closed": self.closed,
            "folder": self.folder,
            "folded": self.folded,
            "rows": [[day, *account, amounts.values()] for (day, account), amounts in self.rows.items()],
            "sandboxes": sandboxes,
            "keys": self.keys,
            "background": [[run, *of.account, of.sandbox, of.began, of.ends] for run, of in self.background.items()],
            # Beside it, since gateways of earlier versions take rows of that form alone.
            "counted": {run: of.out for run, of in self.background.items() if of.out},
        }
        return json.dumps(plain, separators=(",", ":")).encode()


def decode(content: bytes) -> Document:
    """Return a document as it was kept. Raises ValueError: it is none that this version understands."""
    try:
        plain = parsed(content, _VERSION)
        counted = plain.get("counted", {})
        return Document(
            str(plain["replica"]),
            seq=int(plain["seq"]),
            closed=bool(plain["closed"]),
            folder=plain["folder"],
            folded={str(name): int(seq) for name, seq in plain["folded"].items()},
            rows={(day, Account(*who)): Amounts.of(values) for day, *who, values in plain["rows"]},
            sandboxes=dict(_sandbox(*row) for row in plain["sandboxes"]),
            keys={str(key_id): int(minute) for key_id, minute in plain["keys"].items()},
            background={
                run: BackgroundRun(Account(tenant, user, key), sandbox, int(began), int(ends), int(counted.get(run, 0)))
                for run, tenant, user, key, sandbox, began, ends in plain["background"]
            },
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no usage document: {error}") from error


def _sandbox(name: str, tenant: str, user: str, key: str, *rest: Any) -> tuple[str, SandboxUse]:
    template, began, until, expires, memory, amounts = rest
    return name, SandboxUse(Account(tenant, user, key), template, began, until, expires, memory, Amounts.of(amounts))


def counting(documents: Iterable[Document]) -> list[Document]:
    """Return the documents that count: those that are in no other."""
    all_of_them = list(documents)
    folded = {name for each in all_of_them for name in each.folded}
    return [each for each in all_of_them if each.replica not in folded]


def merged(documents: Iterable[Document]) -> Document:
    """Return the sum of all documents, each counted once."""
    whole = Document("", bounded=False)
    for each in counting(documents):
        whole.fold(each)
    return whole
