"""A cluster whose network plugin stops to enforce policies: sandboxes find it out, and what is done then.

The agent that enforces them is a DaemonSet; it is sent off all nodes, and brought back whatever happens. No other test
may run meanwhile: `make test-e2e-alone` runs it.
"""

from collections.abc import AsyncIterator, Iterator

import pytest

from support.cluster.cluster import Cluster, until
from support.cluster.policy_agent import Agent, find_agent
from support.operator.process import Objects, OperatorProcess, namespace, running


@pytest.fixture(scope="module")
def generous(cluster: Cluster) -> Iterator[Objects]:
    assert cluster.namespace
    with namespace("allowed") as own:
        yield Objects(cluster=own)


@pytest.fixture(scope="module")
def operator(objects: Objects, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    log = tmp_path_factory.mktemp("operator") / "log"
    # What has ended is there until it is looked at.
    with running(log, objects.namespace, PROBE_INTERVAL="2", RETENTION="600") as made:
        yield made


@pytest.fixture(scope="module")
def allowing(generous: Objects, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    log = tmp_path_factory.mktemp("allowing") / "log"
    with running(log, generous.namespace, ALLOW_OPEN_NETWORK="true") as made:
        yield made


@pytest.fixture
async def agent(objects: Objects) -> AsyncIterator[Agent]:
    found = await find_agent(objects.cluster)
    yield found
    await found.bring_back()


def isolated(status: dict[str, object]) -> tuple[str, str]:
    listed = status.get("conditions", [])
    assert isinstance(listed, list)
    return next(((c["status"], c["reason"]) for c in listed if c["type"] == "NetworkIsolated"), ("", ""))


async def warm(objects: Objects) -> str:
    """Return the name of the pool's sandbox that can be claimed, if there is one."""
    found = await objects.cluster.items("sandboxes", selector="sandpod.dev/state=warm")
    return next((s["metadata"]["name"] for s in found if s.get("status", {}).get("phase") == "Warm"), "")


@pytest.mark.promise("network-open", "network-enforced")
async def test_policies_that_are_not_enforced_any_more_are_found_out_and_nothing_is_handed_out(
    objects: Objects, generous: Objects, operator: OperatorProcess, allowing: OperatorProcess, agent: Agent
) -> None:
    for each in (objects, generous):
        await each.template()
    await objects.apply("SandboxPool", "pool", templateRef={"name": "python"}, replicas=1)
    await objects.sandbox("held")
    await objects.phase("held", "Ready")
    await objects.pool_has("pool", 1)
    await agent.send_off()
    await objects.sandbox("fresh")
    await generous.sandbox("allowed")
    # What runs ends, with what it reached; what waits in a pool is taken away and can't be replaced.
    assert "reached" in await objects.reason("held", "NetworkOpen", within=60)
    assert isolated(await objects.status("held")) == ("False", "NetworkOpen")
    await until("no warm sandbox can be claimed", lambda: nothing_warm(objects), within=60)
    # What is asked for is refused.
    assert "reached" in await objects.reason("fresh", "NetworkOpen", within=60)
    status = await objects.status("fresh")
    assert isolated(status) == ("False", "NetworkOpen")
    assert status["phase"] == "Failed"
    assert "startTime" not in status
    ended = 'sandpod_sandboxes_ended_total{reason="NetworkOpen"}'
    assert any(text.startswith(ended) for text in operator.get("/metrics").splitlines())
    assert 'sandpod_sandboxes_open_network_total{outcome="ended"}' in operator.get("/metrics")
    await until("the Event", lambda: told(objects, "fresh", "NetworkOpen"), within=60)
    # Where the administrator allows it, it serves and says what it is.
    status = await generous.phase("allowed", "Ready", within=60)
    assert isolated(status) == ("False", "NetworkOpen")
    assert 'sandpod_sandboxes_open_network_total{outcome="allowed"} 1.0' in allowing.get("/metrics")
    await until("the Event", lambda: told(generous, "allowed", "OpenNetworkAllowed"), within=60)
    await agent.bring_back()
    await objects.sandbox("after")
    assert isolated(await objects.phase("after", "Ready")) == ("True", "Probed")


async def nothing_warm(objects: Objects) -> bool:
    return not await warm(objects)


async def told(objects: Objects, name: str, reason: str) -> str:
    chosen = f"involvedObject.kind=Sandbox,involvedObject.name={name},reason={reason},type=Warning"
    return await objects.cluster.kubectl(
        "get", "events", "-n", objects.namespace, "--field-selector", chosen, "-o", "name"
    )
