"""Figures and the table that they are printed in, with the budget beside each. Pure; called by `bench.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.results import OURS, Figure, budget_of, percentile


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a figure may be, and what it is measured against.

    Attributes:
        what: The figure in words.
        unit: ms, MB, MB/s, or x for how many times as much.
        limit: The budget: p50, or p50 and p99 with a stroke between; None where there is none.
        peer: What others, or the bare machine, take for the same.
    """

    what: str
    unit: str
    limit: str | None
    peer: str


BUDGETS: Final = {
    "call": Budget(what="run_python_code print(1), sandbox in use", unit="ms", limit="10 / 25", peer="llm-sandbox 395"),
    "rest": Budget(what="POST /runs print(1), sandbox in use", unit="ms", limit="10 / 25", peer="as run_python_code"),
    "e2b": Budget(
        what="E2B's run_code print(1), sandbox in use", unit="ms", limit="10 / 25", peer="as run_python_code"
    ),
    "rest-more": Budget(what="POST /runs takes more, in turns", unit="ms", limit="0", peer="run_python_code"),
    "e2b-more": Budget(what="E2B's run_code takes more, in turns", unit="ms", limit="0", peer="a cell by MCP"),
    "client": Budget(what="the Python client's run, in a context", unit="ms", limit=None, peer="as run_python_code"),
    "callback": Budget(
        what="the same with a callback for its output", unit="ms", limit=None, peer="as run_python_code"
    ),
    "echo": Budget(what="key press to echo in a terminal", unit="ms", limit="30", peer="the stream alone 1"),
    "page": Budget(what="console's page of 1,000 sandboxes, until usable", unit="ms", limit="1000", peer=""),
    "consoles": Budget(
        what="processor of the gateway for 50 such pages", unit="%", limit="10", peer="news in each poll"
    ),
    "copy": Budget(what="sandpod cp's memory, in and out", unit="MB", limit="64", peer=""),
    "team": Budget(what="keys, limits, usage, audit, secrets add", unit="ms", limit="1", peer="a call without"),
    "frame": Budget(what="frame round trip over the stream", unit="ms", limit="2 / 6", peer="a new exec 80"),
    "runner": Budget(what="Python run inside the runner", unit="ms", limit="8", peer="fork to exit alone 4"),
    "listing": Budget(what="list_sandboxes, which runs nothing", unit="ms", limit=None, peer="FastMCP alone 5"),
    "javascript": Budget(what="run_js_code console.log(1), in use", unit="ms", limit=None, peer=""),
    "node": Budget(what="JavaScript run inside the runner", unit="ms", limit="8 / 25", peer=""),
    "nodes": Budget(what="the same, one right after the other", unit="ms", limit=None, peer="Node's own start 40"),
    "context": Budget(what="cell 1+1 in a context, in use", unit="ms", limit=None, peer=""),
    "cell": Budget(what="cell 1+1 inside the runner", unit="ms", limit="3 / 10", peer=""),
    "gvisor": Budget(what="run_python_code print(1) under gVisor", unit="ms", limit="50", peer="a new exec 267"),
    "eight": Budget(what="8 sleeping runs at once, against one", unit="x", limit="2", peer=""),
    "shell": Budget(what="run_shell_command true, in use", unit="ms", limit=None, peer=""),
    "fresh": Budget(what="fresh sandbox to first output", unit="ms", limit="60 / 200", peer="agent-sandbox 329"),
    "secret": Budget(what="the same of one with a secret", unit="ms", limit="60 / 200", peer="as without"),
    "byte": Budget(what="program's write to its arrival", unit="ms", limit="15", peer="the stream alone 1"),
    "cold": Budget(what="sandbox without a pool, image present", unit="ms", limit="2500", peer="a bare pod 2000"),
    "packages": Budget(what="pandas from the cache into a sandbox", unit="ms", limit="3000", peer=""),
    "output": Budget(what="output streamed out of a sandbox", unit="MB/s", limit="50", peer="one exec 77 to 100"),
    "memory": Budget(what="idle sandbox, no pre-imports", unit="MB", limit="25", peer=""),
    "imported": Budget(what="idle sandbox, the template's pre-imports", unit="MB", limit=None, peer=""),
    "refill": Budget(what="a pool of 50 is full again", unit="s", limit=None, peer="pods take no time here"),
    "steady": Budget(what="claim, at a steady rate that does not wait", unit="ms", limit=None, peer=""),
    "follow": Budget(
        what="the same, with a pool that follows claims", unit="ms", limit="60 / 250", peer="none refused"
    ),
    "writes": Budget(
        what="writes in one sandbox's life, but Events", unit="", limit="6", peer="claim and end included"
    ),
    "orphans": Budget(what="pods without an owner are swept away", unit="s", limit="5", peer=""),
    "claims": Budget(what="claim with most sandboxes, against fewest", unit="x", limit="2", peer=""),
    "operator": Budget(what="operator's memory with most sandboxes", unit="MB", limit="300", peer=""),
    "restarted": Budget(what="memory of one that starts with as many", unit="MB", limit="300", peer=""),
    "reconcile": Budget(what="operator's processor time of a reconcile", unit="ms", limit="5", peer=""),
    "scripts": Budget(what="run_js_code console.log(1), back to back", unit="ms", limit="12 / 30", peer=""),
    "claim": Budget(what="create_sandbox, out of a pool", unit="ms", limit=None, peer=""),
    "upload": Budget(what="copy a file into a sandbox", unit="ms", limit=None, peer=""),
    "together": Budget(what="runs in many sandboxes at once", unit="1/s", limit="110", peer=""),
    "dense": Budget(what="one of many idle sandboxes, no pre-imports", unit="MB", limit="20", peer=""),
    "crowded": Budget(what="what the node takes more for each of them", unit="MB", limit=None, peer=""),
    "full-node": Budget(what="the node with them, and all else on it", unit="MB", limit=None, peer=""),
    "rate": Budget(what="calls per second of gateway processor", unit="1/s", limit="250", peer="FastMCP alone 400-500"),
}


@dataclass(frozen=True)
class Row:
    """One figure, measured.

    Attributes:
        key: Which of `BUDGETS`.
        samples: The measured values, in the budget's unit.
        by: Who did the work.
        detail: How much of the work it was, where that can be chosen.
    """

    key: str
    samples: Sequence[float]
    by: str = OURS
    detail: str = ""

    def what(self) -> str:
        """Return the figure in words."""
        what = BUDGETS[self.key].what
        return f"{what}: {self.detail}" if self.detail else what

    def at(self, share: float) -> float:
        """Return the smallest sample that so large a share of all samples does not pass."""
        return percentile(self.samples, share)


HEAD: Final = f"{'what':<48} {'unit':<5} {'n':>5} {'p50':>8} {'p95':>8} {'p99':>8}  {'budget':<9} compare"


def line(row: Row) -> str:
    """Return a row of the table."""
    budget = BUDGETS[row.key]
    ours = row.by == OURS
    what, limit, peer = (row.what(), budget.limit or "-", budget.peer) if ours else (f"    {row.by}: {row.key}", "", "")
    cuts = " ".join(f"{row.at(share):8.2f}" for share in (0.5, 0.95, 0.99))
    return f"{what:<48} {budget.unit:<5} {len(row.samples):>5} {cuts}  {limit:<9} {peer}".rstrip()


def figure(row: Row) -> Figure:
    """Return a row as it is kept."""
    budget = BUDGETS[row.key]
    ours = row.by == OURS
    p50, p95, p99 = (round(row.at(share), 2) for share in (0.5, 0.95, 0.99))
    return Figure(
        key=row.key,
        what=row.what(),
        by=row.by,
        unit=budget.unit,
        count=len(row.samples),
        p50=p50,
        p95=p95,
        p99=p99,
        budget=budget_of(budget.limit) if ours else None,
        compare=budget.peer if ours else "",
    )
