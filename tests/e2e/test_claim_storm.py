"""A small storm of claims; `make bench-claims` lets a hundred thousand of them rage."""

from pathlib import Path

from support.claims.storm import Storm, storm_over
from support.cluster.cluster import Cluster
from support.operator.process import namespace


async def test_claims_that_race_and_fail_give_no_sandbox_twice_lose_none_and_leave_none(
    cluster: Cluster, tmp_path: Path
) -> None:
    assert cluster.namespace
    storm = Storm(
        tries=80,
        backends=6,
        pools=2,
        ttl=6,
        idle_timeout=3,
        hold=1.0,
        kill_worker_every=25,
        kill_operator_every=3600,
    )
    with namespace("storm") as there:
        verdict = await storm_over(there, tmp_path, storm)
    assert verdict.wrong == []
    # It was a storm: claims raced, some were lost and some won, and answers went astray.
    assert verdict.counts["try 200"] > 0
    assert verdict.counts["try 422"] > 0
    assert verdict.counts["claims held"] > 0
    assert verdict.counts["fault: lost answer"] > 0
