"""A node that is only said to be there: its pods are reported as running at once, so that thousands cost no container.

Called by the bench of scale and by the storm of claims. Scheduler, API server, operator and gateways are real; of the
kubelet there is what they can see.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_gateway.backends.kubernetes import cluster as cluster_module
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_kube.errors import ClusterError
from sandpod_kube.resources import PODS
from support.cluster.cluster import Cluster

LABEL: Final = "sandpod.dev/bench"
LEASE_SECONDS: Final = 10.0
WRITERS: Final = 8  # reports at once

Json = dict[str, Any]


class FakeNode:
    """Reports on the pods of one namespace."""

    def __init__(self, pods: cluster_module.Cluster) -> None:
        self._pods = pods
        self._slots = asyncio.Semaphore(WRITERS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._said: set[str] = set()

    async def run(self) -> None:
        """Report until cancelled."""
        try:
            await self._follow()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            page = await self._pods.list_page("pods", {})
            for pod in page["items"]:
                self._take(pod)
            with contextlib.suppress(ClusterError):
                async for event in self._changes(page["metadata"]["resourceVersion"]):
                    if event["type"] in {"ADDED", "MODIFIED"}:
                        self._take(event["object"])

    def _changes(self, version: str) -> AsyncIterator[Json]:
        client, namespace = self._pods.client, self._pods.namespace
        return client.watch(PODS, namespace, {"labelSelector": names.LABEL_SANDBOX}, version, silence=300)

    def _take(self, pod: Json) -> None:
        meta = pod["metadata"]
        doing = "end" if "deletionTimestamp" in meta else "start" if pod["spec"].get("nodeName") else ""
        if not doing or f"{doing} {meta['uid']}" in self._said:
            return
        self._said.add(f"{doing} {meta['uid']}")
        task = asyncio.create_task(self._end(meta["name"]) if doing == "end" else self._start(meta["name"]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, name: str) -> None:
        async with self._slots:
            with contextlib.suppress(ClusterError):
                path = PODS.path(self._pods.namespace, name)
                await self._pods.client._request("DELETE", path, query={"gracePeriodSeconds": "0"})

    async def _start(self, name: str) -> None:
        now = rfc3339(datetime.now(UTC))
        kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        status = {
            "phase": "Running",
            "startTime": now,
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
            "containerStatuses": [
                {
                    "name": names.CONTAINER,
                    "image": "none",
                    "imageID": "",
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": now}},
                }
            ],
        }
        async with self._slots:
            with contextlib.suppress(ClusterError):
                await self._pods.client.patch_status(PODS, self._pods.namespace, name, status)


def name_of(there: Cluster) -> str:
    """Return the node's name, after others: what looks for a first node finds a real one."""
    return f"virtual-{there.sandboxes}"


@asynccontextmanager
async def fake_node(there: Cluster, *, cpu: str = "100k") -> AsyncIterator[dict[str, Any]]:
    """Have a node, and give what a template says to have its pods on it; it reports on those of the one namespace."""
    name = name_of(there)
    room = {"cpu": cpu, "memory": "100Ti", "pods": "100k", "ephemeral-storage": "100Ti"}
    ready = {"type": "Ready", "status": "True", "reason": "Bench", "lastHeartbeatTime": rfc3339(datetime.now(UTC))}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {LABEL: there.sandboxes, "kubernetes.io/os": "linux"}},
        "spec": {"taints": [{"key": LABEL, "value": "true", "effect": "NoSchedule"}]},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }
    await there.kubectl("apply", "-f", "-", stdin=json.dumps(node))
    await there.kubectl("patch", "node", name, "--subresource=status", "-p", json.dumps({"status": node["status"]}))
    api = await cluster_module.Cluster.connect(KubernetesSettings(namespace=there.sandboxes))
    working = [asyncio.create_task(FakeNode(api).run()), asyncio.create_task(_be_alive(there, name))]
    try:
        yield {"nodeSelector": {LABEL: there.sandboxes}, "tolerations": [{"key": LABEL, "operator": "Exists"}]}
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await _see_off(api)
        await api.close()
        await there.kubectl("delete", "node", name, "--wait=false", check=False)


async def _see_off(pods: cluster_module.Cluster) -> None:
    """Remove what is left on the node: no kubelet does, and garbage collection takes minutes for thousands."""
    while (await pods.list_page("pods", {"limit": "1"}))["items"]:
        with contextlib.suppress(ClusterError):
            query = {"gracePeriodSeconds": "0", "limit": "500"}
            await pods.client._request("DELETE", PODS.path(pods.namespace), query=query)


async def _be_alive(there: Cluster, node: str) -> None:
    while True:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": node, "namespace": "kube-node-lease"},
            "spec": {
                "holderIdentity": node,
                "leaseDurationSeconds": 40,
                "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
        await there.kubectl("apply", "-f", "-", stdin=json.dumps(lease))
        await asyncio.sleep(LEASE_SECONDS)
