"""Figures and the table that they are printed in, with the budget beside each. Pure; called by `bench.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


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
    "client": Budget(what="the Python client's run, in a context", unit="ms", limit=None, peer="as run_python_code"),
    "copy": Budget(what="sandpod cp's memory, 200 MB in and out", unit="MB", limit="64", peer=""),
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
    "rate": Budget(what="calls per second of gateway processor", unit="1/s", limit="250", peer="FastMCP alone 400-500"),
}


@dataclass(frozen=True)
class Row:
    """One figure, measured.

    Attributes:
        key: Which of `BUDGETS`.
        samples: The measured values, in the budget's unit.
    """

    key: str
    samples: Sequence[float]

    def at(self, share: float) -> float:
        """Return the smallest sample that so large a share of all samples does not pass."""
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


HEAD: Final = f"{'what':<42} {'unit':<5} {'n':>5} {'p50':>8} {'p95':>8} {'p99':>8}  {'budget':<9} compare"


def line(row: Row) -> str:
    """Return a row of the table."""
    budget = BUDGETS[row.key]
    cuts = " ".join(f"{row.at(share):8.2f}" for share in (0.5, 0.95, 0.99))
    return f"{budget.what:<42} {budget.unit:<5} {len(row.samples):>5} {cuts}  {budget.limit or '-':<9} {budget.peer}"
