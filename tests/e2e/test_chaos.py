"""Two rounds of faults under load, with a seed of their own; `make chaos` lets a hundred rage.

No other test may run meanwhile: gateways and operators come and go, and what nobody has is looked for.
"""

from pathlib import Path

import pytest

from chaos import invariants
from chaos.chaos import Chaos
from chaos.history import History
from chaos.world import World
from support.cluster.cluster import Cluster, spread_service

FAULTS = (
    "operator pods deleted",
    "gateway pods deleted",
    "clients' streams cut",
    "clients' streams stalled",
    "sandbox's pod deleted",
)
SEED = 53  # all of these come in two rounds, none for long


@pytest.mark.timeout(600)
async def test_nothing_is_lost_done_twice_or_left_behind_while_parts_come_and_go_under_load(
    cluster: Cluster, keys: dict[str, str], tmp_path: Path
) -> None:
    history = History(tmp_path / "history.jsonl")
    chaos = Chaos(World(cluster, [], set()), history, SEED, list(FAULTS))
    kinds = ("runs", "background", "terminal", "lasting")
    with spread_service(cluster.namespace) as address:
        wrong = await chaos.run(2, f"http://{address}", {"alice": keys["alice"]}, kinds)
    history.close()
    counts = invariants.counts(history.records)
    assert wrong == [], (counts, [invariants.sentence(each) for each in history.since("round")])
    assert {name for name in FAULTS if counts.get(f"fault: {name}")} == set(FAULTS)
    assert all(counts.get(f"{op}: ok") for op in ("run", "background", "terminal", "file")), counts
    await cluster.kubectl("delete", "sbxt", "chaos-lasting", "-n", cluster.sandboxes)
