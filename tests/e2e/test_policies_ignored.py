"""A cluster whose network plugin stops to enforce policies: sandboxes find it out, and what is done then.

The agent that enforces them is a DaemonSet; it is sent off all nodes, and brought back whatever happens. No other test
may run meanwhile: `make test-e2e-alone` runs it.
"""

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from support.cluster.cluster import Cluster, until
from support.cluster.nodes import on_every_node
from support.operator.process import Objects, OperatorProcess, namespace, running

# On a kind cluster it is the one DaemonSet beside kube-proxy; elsewhere it has to be said, as namespace/name.
AGENT = os.environ.get("SANDPOD_TEST_POLICY_AGENT", "")
NOWHERE = "sandpod.dev/test-nowhere"


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


# Where the agent leaves behind what it has told the kernel, nothing passes any more.
OPEN_NODE = """
for chain in INPUT POSTROUTING; do iptables -t mangle -F $chain; ip6tables -t mangle -F $chain || true; done
for table in kindnet-network-policies kube-network-policies; do nft delete table inet $table || true; done
"""


class Agent:
    """What enforces the cluster's policies."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._namespace, self._name = name.split("/")

    async def send_off(self) -> None:
        """Take it off all nodes with what it left there, and wait until both are gone."""
        # At once: the first deletion of a pod decides how long it may take.
        names = [pod["metadata"]["name"] for pod in await self._pods()]
        await self._ask("delete", "pod", *names, "--grace-period=1", "--wait=false")
        await self._select('"true"')

        async def gone() -> bool:
            return not await self._pods()

        await until("the policy agent is gone", gone, within=90)
        await on_every_node(self._cluster, OPEN_NODE)

    async def _pods(self) -> list[dict[str, Any]]:
        pods = await self._cluster.items("pods", namespace=self._namespace)
        return [pod for pod in pods if pod["metadata"].get("ownerReferences", [{}])[0].get("name") == self._name]

    async def bring_back(self) -> None:
        """Let it run on all nodes again, and wait until it does."""
        await self._select("null")
        await self._ask("rollout", "status", f"daemonset/{self._name}", "--timeout=110s")

    async def _select(self, value: str) -> None:
        patch = f'{{"spec": {{"template": {{"spec": {{"nodeSelector": {{"{NOWHERE}": {value}}}}}}}}}}}'
        await self._ask("patch", "daemonset", self._name, "--type=merge", "-p", patch)

    async def _ask(self, *arguments: str) -> str:
        return await self._cluster.kubectl(*arguments, "-n", self._namespace)


async def find_agent(cluster: Cluster) -> Agent:
    there = [each["metadata"]["name"] for each in await cluster.items("daemonsets", namespace="kube-system")]
    candidates = [AGENT] if AGENT else [f"kube-system/{name}" for name in there if name != "kube-proxy"]
    if len(candidates) != 1:
        pytest.fail(
            f"Which of {candidates} enforces policies here? Name it in SANDPOD_TEST_POLICY_AGENT as namespace/name, or "
            "leave this file out with --ignore: its test stops that DaemonSet and flushes its rules on all nodes."
        )
    return Agent(cluster, candidates[0])


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
