"""What was used, as rows for people and spreadsheets. Pure."""

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Final, Literal

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.usage.amounts import SECOND, Account, Amounts
from sandpod_gateway.usage.document import Document, counting, merged

By = Literal["key", "user", "tenant", "sandbox"]

_DIGITS: Final = 3
_NAMES: Final[dict[By, tuple[str, ...]]] = {
    "tenant": ("day", "tenant"),
    "user": ("day", "tenant", "user"),
    "key": ("day", "tenant", "user", "key"),
    "sandbox": ("claimed", "tenant", "user", "key", "sandbox", "template", "live"),
}
_AMOUNTS: Final = (
    "cpu_seconds",
    "memory_gib_seconds",
    "wall_seconds",
    "idle_seconds",
    "bytes_in",
    "bytes_out",
    "upload_bytes",
    "runs",
    "calls",
)

_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
"""What spreadsheets take for the beginning of a formula: names are the callers' own words."""

Value = str | int | float


@dataclass(frozen=True)
class Report:
    """Rows of use, each with the columns' values."""

    columns: tuple[str, ...]
    rows: list[tuple[Value, ...]]
    names: int = 0  # how many columns name a row; the others are amounts

    def csv(self) -> str:
        """Return the rows as CSV (RFC 4180, but with plain line feeds) in which no spreadsheet finds a formula."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(map(_harmless, self.rows))
        return out.getvalue()

    def objects(self) -> list[dict[str, Value]]:
        """Return the rows by the names of their columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def report(
    documents: Iterable[Document],
    *,
    by: By = "user",
    since: str | None = None,
) -> Report:
    """Return what was used by day and user (or key or tenant), or by sandbox; rows are in the order of their names.

    `since` is a day, as 2026-11-30 (UTC). Raises SandpodError (invalid_argument): it is none.
    """
    first, whole = _day(since), merged(documents)
    sums: dict[tuple[Value, ...], Amounts] = {}
    if by == "sandbox":
        for name, use in whole.sandboxes.items():
            claimed = datetime.fromtimestamp(use.began / SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            if claimed >= first:
                live = "yes" if use.until is not None else "no"
                sums[claimed, *use.account, name, use.template, live] = use.amounts
    else:
        width = len(_NAMES[by])
        for (day, account), amounts in whole.rows.items():
            if day >= first:
                sums.setdefault((day, *account)[:width], Amounts()).add(amounts)
    amounts_of = _AMOUNTS[:-1] if by == "sandbox" else _AMOUNTS  # calls are of callers, not of sandboxes
    rows = [(*names, *_plain(sums[names])[: len(amounts_of)]) for names in sorted(sums)]
    return Report((*_NAMES[by], *amounts_of), rows, len(_NAMES[by]))


def _day(text: str | None) -> str:
    try:
        return "" if text is None else date.fromisoformat(text).isoformat()
    except ValueError as error:
        message, step = "since is a day such as 2026-11-30.", "Correct it."
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step) from error


def _harmless(row: Iterable[Value]) -> list[Value]:
    return [f"'{each}" if isinstance(each, str) and each.startswith(_FORMULAS) else each for each in row]


def _plain(amounts: Amounts) -> tuple[Value, ...]:
    idle = max(0, amounts.wall - amounts.busy)
    times = (round(each / SECOND, _DIGITS) for each in (amounts.cpu, amounts.memory, amounts.wall, idle))
    return (*times, amounts.bytes_in, amounts.bytes_out, amounts.uploads, amounts.runs, amounts.calls)


def part_of(documents: Iterable[Document], counts: Callable[[Account], bool]) -> list[Document]:
    """Return documents with what accounts that count used, as they are now."""
    return [
        replace(
            each,
            rows={key: amounts for key, amounts in each.rows.items() if counts(key[1])},
            sandboxes={name: use for name, use in each.sandboxes.items() if counts(use.account)},
        )
        for each in documents
    ]


def last_used(documents: Iterable[Document]) -> dict[str, datetime]:
    """Return when keys were used last, to the minute, by their ids."""
    minutes: dict[str, int] = {}
    for document in counting(documents):
        for key_id, minute in document.keys.items():
            minutes[key_id] = max(minute, minutes.get(key_id, 0))
    return {key_id: datetime.fromtimestamp(minute * 60, UTC) for key_id, minute in minutes.items()}
