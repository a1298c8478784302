"""The file that a benchmark writes: what was measured, where, and how."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

OURS: Final = "Sandpod"
RATES: Final = frozenset({"1/s", "MB/s"})
"""Units of which more is better."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Machine(_Frozen):
    """Where it was measured.

    Attributes:
        processor: The processor's model.
        cores: How many of it there are.
        memory_gib: The memory.
        kernel: The kernel's release.
        system: The operating system.
        kubernetes: The API server's version; empty without a cluster.
        runtime: The container runtime of the node; empty without a cluster.
        docker: The Docker engine's version; empty without one.
        python: The version of the Python that measured, which the local gateway runs on, too.
        load_before: Load averages over 1, 5 and 15 minutes before the first measurement.
        load_after: The same after the last one.
    """

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    system: str
    kubernetes: str = ""
    runtime: str = ""
    docker: str = ""
    python: str
    load_before: tuple[float, float, float]
    load_after: tuple[float, float, float] = (0, 0, 0)


class Figure(_Frozen):
    """One row: a work, who did it, and how long it took or how much it was.

    Attributes:
        key: Which work.
        what: The work in words.
        by: Who did it.
        unit: The unit of the percentiles.
        count: How many samples there are.
        p50: The median.
        p95: What 95 of 100 samples do not pass.
        p99: What 99 of 100 samples do not pass.
        budget: What it may be, p50 or p50 and p99; None for what has no budget and for peers.
        compare: What it was measured against earlier, in words.
    """

    key: str
    what: str
    by: str = OURS
    unit: str
    count: int
    p50: float
    p95: float
    p99: float
    budget: tuple[float, ...] | None = None
    compare: str = ""

    def met(self) -> bool | None:
        """Return whether the budget is met; None without one."""
        if self.budget is None:
            return None
        pairs = zip(self.budget, (self.p50, self.p99), strict=False)
        return all(found >= wanted if self.unit in RATES else found <= wanted for wanted, found in pairs)


class Results(_Frozen):
    """One run of a benchmark.

    Attributes:
        date: The day, as YYYY-MM-DD.
        version: Of Sandpod: the commit, if it was measured in a checkout.
        command: The command.
        arguments: What it was given as BENCH_ARGS.
        machine: Where.
        peers: The version of each peer that was there.
        left_out: Why something that was asked for was not measured, or not to its end.
        figures: The rows, in the order in which they were taken.
    """

    date: str
    version: str
    command: str
    arguments: str = ""
    machine: Machine
    peers: dict[str, str] = {}
    left_out: dict[str, str] = {}
    figures: tuple[Figure, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the results in a file. Raises ValidationError: it is not of this form."""
        return cls.model_validate_json(path.read_text(encoding="utf-8"))

    def write(self, path: Path) -> None:
        """Write a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    def ours(self) -> list[Figure]:
        """Return the rows of Sandpod."""
        return [figure for figure in self.figures if figure.by == OURS]

    def compared(self) -> list[list[Figure]]:
        """Return each work that a peer did too: Sandpod's row first, then the peers'."""
        groups = [[figure for figure in self.figures if figure.key == ours.key] for ours in self.ours()]
        return [sorted(group, key=lambda figure: figure.by != OURS) for group in groups if len(group) > 1]


def budget_of(limit: str | None) -> tuple[float, ...] | None:
    """Return a budget as numbers: `10 / 25` is p50 and p99."""
    return None if limit is None else tuple(float(part) for part in limit.split("/"))


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that so large a share of all samples does not pass."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
