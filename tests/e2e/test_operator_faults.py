"""Operators that die, wait, lose the Lease or are gone: nothing is lost, made twice or stuck."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster.cluster import Cluster, until
from support.operator.process import Objects, OperatorProcess, namespace, run, running

# The deadline has to be longer than a busy API server takes to answer: a replica ends when it could not renew in time.
QUICK = {"LEASE_DURATION": "10", "LEASE_RENEW_DEADLINE": "8", "LEASE_RETRY": "0.5"}


@pytest.fixture
def objects(cluster: Cluster) -> Iterator[Objects]:
    assert cluster.namespace
    with namespace("faults") as own:
        yield Objects(cluster=own)


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


async def test_standby_takes_over_from_a_killed_replica_and_from_a_stopped_one(
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
    assert standby.stop() == 0
    holder = run("get", "lease", "sandpod-operator", "-n", objects.namespace, "-o", "jsonpath={.spec.holderIdentity}")
    assert holder == ""


async def test_replica_that_loses_the_lease_ends_with_1(
    objects: Objects, replicas: tuple[OperatorProcess, OperatorProcess]
) -> None:
    active, standby = await in_order(replicas)
    standby.kill()
    run(
        "patch",
        "lease",
        "sandpod-operator",
        "-n",
        objects.namespace,
        "--type=merge",
        "-p",
        '{"spec": {"holderIdentity": "somebody-else"}}',
    )
    assert active.wait() == 1


@pytest.fixture
def operator(objects: Objects, tmp_path: Path) -> Iterator[OperatorProcess]:
    with running(tmp_path / "log", objects.namespace) as made:
        yield made


async def test_heartbeat_comes_back_through_the_watch(operator: OperatorProcess) -> None:
    ages: list[float] = []

    async def fell() -> bool:
        lines = operator.get("/metrics").splitlines()
        line = next(line for line in lines if line.startswith("sandpod_operator_watch_age_seconds{"))
        ages.append(float(line.rpartition(" ")[2]))
        return len(ages) > 1 and ages[-1] < ages[-2]

    await until("a heartbeat's event arrives", fell, within=60)


@pytest.mark.promise("no-finalizers")
async def test_everything_can_be_deleted_while_no_operator_runs(objects: Objects, operator: OperatorProcess) -> None:
    await objects.template()
    await objects.sandbox("one")
    await objects.sandbox("two")
    for name in ("one", "two"):
        await objects.phase(name, "Ready")
    operator.kill()
    await objects.cluster.kubectl("delete", "sbx", "one", "-n", objects.namespace, "--timeout=60s")
    await objects.gone("pods", "one")
    await objects.cluster.kubectl("delete", "namespace", objects.namespace, "--timeout=90s")
    await objects.cluster.kubectl("create", "namespace", objects.namespace)


async def test_pod_that_lost_its_owner_is_swept_away(objects: Objects, operator: OperatorProcess) -> None:
    assert operator.port
    await objects.template()
    await objects.sandbox("gone")
    await objects.phase("gone", "Ready")
    patch = '{"metadata": {"ownerReferences": null}}'
    await objects.cluster.kubectl("patch", "pod", "gone", "-n", objects.namespace, "--type=merge", "-p", patch)
    await objects.cluster.kubectl("delete", "sbx", "gone", "-n", objects.namespace)
    await objects.gone("pods", "gone")
