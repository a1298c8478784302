"""The generated parts of docs/benchmarks.md, from the results of one benchmark."""

from collections.abc import Callable
from typing import Final

from benchmarks.charts import against_budgets, beside, number
from benchmarks.results import OURS, Figure, Results

Row = tuple[str, ...]


def table(*rows: Row) -> str:
    """Return a Markdown table; the first row is its head."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]])


def machine(results: Results) -> str:
    """Return where, when and how it was measured."""
    where = results.machine
    known = {
        "Date": results.date,
        "Sandpod": results.version,
        "Command": f"`{results.command}`",
        "Its `BENCH_ARGS`": results.arguments and f"`{results.arguments}`",
        "Processor": f"{where.processor}, {where.cores} cores",
        "Memory": f"{where.memory_gib:g} GiB",
        "System": f"{where.system}, Linux {where.kernel}",
        "Kubernetes": where.kubernetes,
        "Container runtime": where.runtime,
        "Docker": where.docker,
        "Python": where.python,
        "Load before": loads(where.load_before),
        "Load after": loads(where.load_after),
        **{f"Version of {name}": version for name, version in results.peers.items()},
        **{f"Left out: {name}": reason for name, reason in results.left_out.items()},
    }
    return table(("What", "Here"), *((name, value) for name, value in known.items() if value))


def loads(averages: tuple[float, float, float]) -> str:
    """Return load averages with what they are averages of."""
    one, five, fifteen = averages
    return f"{one:g} over 1 minute, {five:g} over 5, {fifteen:g} over 15"


def verdict(figure: Figure) -> str:
    """Return whether a budget is met."""
    return {True: "met", False: "**missed**", None: ""}[figure.met()]


def budget(figure: Figure) -> str:
    """Return a budget as one reads it."""
    return "" if figure.budget is None else " / ".join(f"{limit:g}" for limit in figure.budget)


def percentiles(figure: Figure) -> Row:
    """Return the three of a row; one alone where there is one sample."""
    return tuple(
        number(value) for value in ((figure.p50, figure.p95, figure.p99) if figure.count > 1 else (figure.p50,))
    )


def filled(cells: Row, width: int) -> Row:
    """Return cells with empty ones behind them."""
    return (*cells, *("" for _ in range(width - len(cells))))


def peers(results: Results) -> str:
    """Return each work that a peer did, too, with how many times as long it took."""
    rows: list[Row] = [("Work", "By", "Unit", "Samples", "p50", "p95", "p99", "Times Sandpod's p50")]
    for group in results.compared():
        ours = group[0]
        for figure in group:
            times = "" if figure.by == OURS or not ours.p50 else f"{figure.p50 / ours.p50:.2g}"
            what = figure.what if figure.by == OURS else ""
            cells = (what, figure.by, figure.unit, str(figure.count))
            rows.append((*cells, *filled(percentiles(figure), 3), times))
    return table(*rows) if len(rows) > 1 else "No peer was measured."


def budgets(results: Results) -> str:
    """Return all rows of Sandpod with their budgets."""
    rows = [
        (figure.what, figure.unit, str(figure.count), *filled(percentiles(figure), 3), budget(figure), verdict(figure))
        for figure in results.ours()
    ]
    return table(("What", "Unit", "Samples", "p50", "p95", "p99", "Budget", ""), *rows)


def summary(results: Results) -> str:
    """Return how many budgets are met, and which are not."""
    judged = [figure for figure in results.ours() if figure.met() is not None]
    missed = [figure.what for figure in judged if not figure.met()]
    text = f"{len(judged) - len(missed)} of {len(judged)} budgets are met."
    if missed:
        text += "\n\nMissed:\n\n" + "\n".join(f"- {what}" for what in missed)
    return text


PARTS: Final[dict[str, Callable[[Results], str]]] = {
    "machine": machine,
    "peers": peers,
    "budgets": budgets,
    "summary": summary,
}
"""The parts by the names that the page has for them."""


def pictures(results: Results) -> dict[str, str]:
    """Return the page's pictures by their file names."""
    return {
        "benchmarks-peers.svg": beside(results.compared()),
        "benchmarks-budgets.svg": against_budgets(results.ours()),
    }
