"""Mixed load for hours, and whether anything grows meanwhile: `make soak`.

    python -m chaos.soak --minutes 120      on the cluster of KUBECONFIG, with the chart installed

Each of what a program takes has a line through its samples, after a time to warm up. It fails where a line rises by
more than its bound an hour, beyond its error.
"""

import argparse
import asyncio
import json
import time
from collections import defaultdict
from functools import partial
from typing import Final

from chaos import invariants
from chaos.chaos import FOLDER, Chaos, run_installed, world_of
from chaos.history import History, Record
from chaos.load import Load
from chaos.slope import slope
from chaos.world import World
from support.cluster.cluster import Cluster, ClusterError
from support.cluster.reading import RefusedError

EVERY: Final = 15.0  # seconds between two samples
WARM: Final = 0.2  # part of the time after which lines begin: caches fill, and sandboxes start
MIB: Final = 1 << 20
BOUNDS: Final = {
    "gateway memory": 4 * MIB,
    "gateway descriptors": 4,
    "gateway threads": 2,
    "operator memory": 4 * MIB,
    "operator descriptors": 4,
    "operator threads": 2,
    "runner memory": 4 * MIB,
    "runner descriptors": 4,
    "runner threads": 2,
    "API server memory": 100 * MIB,  # it has all events of the last hour in memory
    "API server descriptors": 10,
    "API server threads": 5,
    "objects": 20,
}
"""What each may grow by in an hour: less than what would be felt in a week, but for what ends by itself."""
FORGOTTEN: Final = frozenset({"events"})
"""Objects that the API server deletes after an hour: until then each that happens is one more."""


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Measures whether anything grows under load.")
    parser.add_argument("--minutes", type=float, default=120)
    return parser.parse_args()


def series(samples: list[Record], *, warm: float) -> dict[str, list[tuple[float, float]]]:
    """Return the sums over all programs of a name, and the counts of objects, by what they are of; time in seconds.

    Of the runners it is the mean: there are more and less of them.
    """
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in samples:
        if each["at"] < warm:
            continue
        for name in sorted({program["name"] for program in each["programs"]}):
            of = [program for program in each["programs"] if program["name"] == name]
            count = len(of) if name == "runner" else 1
            for what in ("memory", "descriptors", "threads"):
                found[f"{name} {what}"].append((each["at"], sum(program[what] for program in of) / count))
        counted = sum(count for kind, count in each["stored"].items() if kind not in FORGOTTEN)
        found["objects"].append((each["at"], counted))
    return dict(found)


def judge(lines: dict[str, list[tuple[float, float]]]) -> tuple[list[str], list[str]]:
    """Return a line for people about each, and what grows."""
    rows, wrong = [], []
    for name, samples in sorted(lines.items()):
        found, bound = slope(samples), BOUNDS[name]
        unit = MIB if name.endswith("memory") else 1
        bad = found.exceeds(bound)
        rows.append(
            f"{name:<24} {found.last / unit:>9.1f} {found.per_hour / unit:>+9.2f} an hour, "
            f"error {found.error / unit:.2f}, "
            f"bound {bound / unit:g}, {found.count} samples{'  GROWS' if bad else ''}"
        )
        if bad:
            wrong.append(f"{name} grows by {found.per_hour / unit:.2f} an hour (error {found.error / unit:.2f})")
    return rows, wrong


async def measure(world: World, history: History, seconds: float) -> None:
    """Take samples for a time."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            history.add("sample", programs=await world.samples(), stored=await world.stored())
        except (ClusterError, RefusedError, OSError) as error:
            history.add("no sample", said=str(error))
        await asyncio.sleep(EVERY)


async def _main(minutes: float, url: str, cluster: Cluster, keys: dict[str, str]) -> int:
    world = await world_of(cluster)
    if not world.nodes:
        print("The programs of a cluster that is not kind's can't be measured.")
        return 2
    history = History(FOLDER / f"soak-{time.strftime('%Y%m%d-%H%M%S')}.jsonl")
    await Chaos(world, history, 0, []).prepare()
    load = Load(url, keys, history)
    history.add("round", number=1, faults=[])
    load.go()
    try:
        await measure(world, history, minutes * 60)
        await load.rest()
        wrong = invariants.violations(history.records)
    finally:
        await load.end()
    samples = [each for each in history.records if each["kind"] == "sample"]
    rows, grown = judge(series(samples, warm=minutes * 60 * WARM))
    print(json.dumps(invariants.counts(history.records)))
    print("\n".join(rows))
    print("\n".join(f"WRONG {text}" for text in (*wrong, *grown)))
    print(f"{minutes:g} minutes, history {history.path}: {len(wrong) + len(grown)} wrong")
    history.close()
    return bool(wrong or grown)


def main() -> None:
    """Measure the installed release."""
    run_installed(partial(_main, parse().minutes))


if __name__ == "__main__":
    main()
