"""Operators that die, wait, lose the Lease or are gone: nothing is lost, made twice or stuck."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpod_api.names import LEASE_LEADER
from support.cluster.cluster import until
from support.operator.process import Objects, OperatorProcess

# The deadline has to be longer than a busy API server takes to answer: a replica ends when it could not renew in time.
QUICK = {"LEASE_DURATION": "10", "LEASE_RENEW_DEADLINE": "8", "LEASE_RETRY": "0.5"}


@pytest.fixture
def replicas(objects: Objects, tmp_path: Path) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    made = [OperatorProcess(tmp_path / f"log-{n}", objects.namespace, **QUICK) for n in (1, 2)]
    yield made[0], made[1]
    for operator in made:
        operator.kill()


async def in_order(
    replicas: tuple[OperatorProcess, OperatorProcess],
) -> tuple[OperatorProcess, OperatorProcess]:
    """Return the active replica and the one that waits, once both are up."""

    async def look() -> list[str]:
        roles = [r.get("/readyz") for r in replicas]
        return roles if sorted(roles) == ["active\n", "standby\n"] else []

    roles = await until("one active and one standby", look, within=60)
    return replicas if roles[0] == "active\n" else (replicas[1], replicas[0])


@pytest.mark.promise("no-finalizers")
async def test_standby_takes_over_from_a_killed_replica_and_all_can_be_deleted_once_it_has_lost_the_lease(
    objects: Objects, replicas: tuple[OperatorProcess, OperatorProcess]
) -> None:
    active, standby = await in_order(replicas)
    await objects.template()
    await objects.apply("SandboxPool", "warm", templateRef={"name": "python"}, replicas=1)
    await objects.pool_has("warm", 1)
    assert standby.writes() == {}
    active.kill()
    await standby.is_active(within=60)
    # All is well, so the new one writes nothing.
    assert standby.writes() == {}
    await objects.sandbox("after")
    await objects.phase("after", "Ready")
    assert standby.get("/healthz") == "ok\n"

    await objects.patch("leases", LEASE_LEADER, {"spec": {"holderIdentity": "somebody-else"}})
    assert await asyncio.to_thread(standby.wait) == 1

    # No operator runs any more.
    await objects.delete("sandboxes", "after")
    await objects.gone("pods", "after")
    await objects.cluster.kubectl("delete", "namespace", objects.namespace, "--timeout=90s")
