"""The cluster under chaos as its administrator sees it: what is there, whether all works, and what programs take."""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, Final

from chaos.invariants import orphans
from chaos.load import MARKS, Worker
from chaos.machine import Node
from support.cluster.cluster import Cluster, ClusterError, until
from support.cluster.reading import RefusedError, raw

BACK: Final = 300.0  # seconds after which all must work again
SWEEP: Final = 90.0  # seconds for one sweep of what belongs to nothing, with the time that is left to Kubernetes before
_PATIENCE: Final = 120.0  # seconds for one look into a sandbox, on a node that others keep busy
_LOOK: Final = f"""
import json, pathlib
marks = pathlib.Path('/workspace/{MARKS}')
files = {{f'kept/{{p.name}}': p.read_text() for p in pathlib.Path('/workspace/kept').glob('[0-9]*')}}
found = [int(line) for line in marks.read_text().split()] if marks.exists() else []
print(json.dumps({{'marks': found, 'files': files}}))
"""


def _owner(body: dict[str, Any], kind: str = "Sandbox") -> str:
    return next((str(ref["uid"]) for ref in body["metadata"].get("ownerReferences", ()) if ref["kind"] == kind), "")


@dataclass
class World:
    """The cluster.

    Attributes:
        nodes: Its nodes, where they can be reached; the one with the API server first.
        abilities: What can be done there.
    """

    cluster: Cluster
    nodes: list[Node]
    abilities: set[str]

    async def settled(self) -> tuple[float, str]:
        """Wait until all works again; return how long that took, and what does not."""
        began, missing = time.monotonic(), "everything"
        while time.monotonic() - began < BACK:
            try:
                missing = await self._missing()
            except (ClusterError, RefusedError, OSError, ValueError, KeyError) as error:
                missing = str(error)[:300] or repr(error)
            if not missing:
                break
            await asyncio.sleep(1)
        return time.monotonic() - began, missing

    async def _missing(self) -> str:
        if await asyncio.to_thread(raw, "/readyz") != b"ok":
            return "the API server is not ready"
        for node in await self.cluster.items("nodes", namespace="default"):
            ready = {each["type"]: each["status"] for each in node["status"]["conditions"]}
            if ready["Ready"] != "True" or node["spec"].get("taints"):
                return f"{node['metadata']['name']} is not ready, or has taints: {node['spec'].get('taints')}"
        for component in ("gateway", "operator"):
            told = await self.cluster.kubectl(
                "get", "deployment", f"sandpod-{component}", "-n", self.cluster.namespace, "-o", "json"
            )
            found = json.loads(told)
            if found["status"].get("availableReplicas", 0) < found["spec"]["replicas"]:
                return f"{component}s: {found['status']}"
        for each in await self.cluster.items("daemonsets", namespace="kube-system"):
            if each["status"].get("numberAvailable", 0) < each["status"]["desiredNumberScheduled"]:
                return f"{each['metadata']['name']} does not run everywhere"
        pool = await self.cluster.get("sandboxpools", "default")
        if pool["status"].get("readyReplicas", 0) < pool["spec"]["replicas"]:
            return f"the pool is not full: {pool['status']}"
        return ""

    async def objects(self) -> dict[str, Any]:
        """Return what there is of Sandpod in the sandboxes' namespace."""
        sandboxes, pods, policies, volumes = await asyncio.gather(
            *(self.cluster.items(kind) for kind in ("sandboxes", "pods", "networkpolicies", "persistentvolumeclaims"))
        )

        def children(bodies: list[dict[str, Any]]) -> list[dict[str, str]]:
            return [{"name": each["metadata"]["name"], "of": _owner(each)} for each in bodies]

        return {
            "sandboxes": [
                {
                    "name": each["metadata"]["name"],
                    "uid": each["metadata"]["uid"],
                    "owner": each["spec"].get("claim", {}).get("owner", ""),
                    "phase": each.get("status", {}).get("phase", ""),
                }
                for each in sandboxes
            ],
            "pods": children(pods),
            # The others are the namespace's.
            "policies": children([each for each in policies if each["metadata"].get("ownerReferences")]),
            "volumes": children(volumes),
        }

    async def swept(self) -> dict[str, Any]:
        """Return what there is once nothing of it belongs to nothing, or after one sweep."""
        began = time.monotonic()
        while True:
            found = await self.objects()
            if time.monotonic() - began > SWEEP or not list(orphans(found)):
                return found
            await asyncio.sleep(2)

    async def samples(self) -> list[dict[str, Any]]:
        """Return what each program takes."""
        return [sample for node in self.nodes for sample in await node.samples()]

    async def stored(self) -> dict[str, int]:
        """Return how many objects the API server has, by resource."""
        found = {}
        for line in (await asyncio.to_thread(raw, "/metrics")).decode().splitlines():
            if line.startswith(("apiserver_storage_objects{", "apiserver_resource_objects{")):
                labels, _, value = line.partition("{")[2].rpartition("} ")
                name = labels.rpartition('resource="')[2].partition('"')[0]
                found[name] = int(float(value))
        return found

    async def inside(self, worker: Worker) -> dict[str, Any]:
        """Return the marks and files of a worker's sandbox, by another way than the gateway. Raises ClusterError."""
        assert worker.sandbox is not None
        handle = worker.sandbox

        async def look() -> dict[str, Any] | None:
            try:
                found: dict[str, Any] = json.loads(
                    await self.cluster.in_pod((await self.cluster.pod_of(handle))["metadata"]["name"], _LOOK)
                )
            except (ClusterError, KeyError, ValueError):
                return None
            return found

        found = await until(f"{handle} can be looked into", look, within=_PATIENCE)
        assert found is not None
        return found
