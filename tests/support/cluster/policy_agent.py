"""The agent that enforces the cluster's policies: a DaemonSet, which can be sent off all nodes and brought back."""

import os
from typing import Any

from support.cluster.cluster import Cluster, ClusterError, until
from support.cluster.nodes import on_every_node

# On a kind cluster it is the one DaemonSet beside kube-proxy; elsewhere it has to be said, as namespace/name.
AGENT = os.environ.get("SANDPOD_TEST_POLICY_AGENT", "")
NOWHERE = "sandpod.dev/test-nowhere"

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
    """Return what enforces policies. Raises ClusterError: that has to be said."""
    there = [each["metadata"]["name"] for each in await cluster.items("daemonsets", namespace="kube-system")]
    candidates = [AGENT] if AGENT else [f"kube-system/{name}" for name in there if name != "kube-proxy"]
    if len(candidates) != 1:
        raise ClusterError(
            f"Which of {candidates} enforces policies here? Name it in SANDPOD_TEST_POLICY_AGENT as namespace/name, or "
            "leave this file out with --ignore: its test stops that DaemonSet and flushes its rules on all nodes."
        )
    return Agent(cluster, candidates[0])
