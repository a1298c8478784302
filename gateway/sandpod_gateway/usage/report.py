"""What was used, as rows for people and spreadsheets. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from sandpod_gateway.usage.amounts import SECOND, Amounts
from sandpod_gateway.usage.document import Document, merged

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

Value = str | int | float


@dataclass(frozen=True)
class Report:
    """Rows of use, each with the columns' values."""

    columns: tuple[str, ...]
    rows: list[tuple[Value, ...]]

    def objects(self) -> list[dict[str, Value]]:
        """Return the rows by the names of their columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def report(documents: Iterable[Document], *, by: By = "user", since: str | None = None) -> Report:
    """Return what was used by day and user (or key or tenant), or by sandbox, since a day (as 2026-11-30, UTC)."""
    whole = merged(documents)
    sums: dict[tuple[Value, ...], Amounts] = {}
    if by == "sandbox":
        for name, use in whole.sandboxes.items():
            claimed = datetime.fromtimestamp(use.began / SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            if since is None or claimed >= since:
                live = "yes" if use.until is not None else "no"
                sums[claimed, *use.account, name, use.template, live] = use.amounts
    else:
        width = len(_NAMES[by])
        for (day, account), amounts in whole.rows.items():
            if since is None or day >= since:
                sums.setdefault((day, *account)[:width], Amounts()).add(amounts)
    amounts_of = _AMOUNTS[:-1] if by == "sandbox" else _AMOUNTS  # calls are of callers, not of sandboxes
    rows = [(*names, *_plain(sums[names])[: len(amounts_of)]) for names in sorted(sums)]
    return Report((*_NAMES[by], *amounts_of), rows)


def _plain(amounts: Amounts) -> tuple[Value, ...]:
    idle = max(0, amounts.wall - amounts.busy)
    times = (round(each / SECOND, _DIGITS) for each in (amounts.cpu, amounts.memory, amounts.wall, idle))
    return (*times, amounts.bytes_in, amounts.bytes_out, amounts.uploads, amounts.runs, amounts.calls)


def last_used(documents: Iterable[Document]) -> dict[str, datetime]:
    """Return when keys were used last, to the minute, by their ids."""
    return {key_id: datetime.fromtimestamp(minute * 60, UTC) for key_id, minute in merged(documents).keys.items()}
