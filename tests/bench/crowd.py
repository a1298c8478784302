"""Many sandboxes of a cluster: what they do when all work at once, and what they take while all are idle."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Final

from bench.measures import MEGA, checked
from bench.rows import Row
from support.cluster.callers import Session
from support.cluster.cluster import Cluster, until

DENSITY: Final = "bench-density"
PATIENCE: Final = 900.0
"""Seconds in which as many pods start, on a small machine."""


class RoomError(RuntimeError):
    """The cluster has no room for what is to be measured; the text says for what."""


async def together(session: Session, sandboxes: Sequence[str], runs: int) -> AsyncIterator[Row]:
    """Runs per second when so many sandboxes run one program after the other, all of them at once."""

    async def repeat(sandbox: str, count: int) -> None:
        for _ in range(count):
            checked(await session.python("print(1)", sandbox=sandbox))

    await asyncio.gather(*(repeat(sandbox, 1) for sandbox in sandboxes))
    begun = time.perf_counter()
    await asyncio.gather(*(repeat(sandbox, runs) for sandbox in sandboxes))
    rate = len(sandboxes) * runs / (time.perf_counter() - begun)
    yield Row("together", [rate], detail=f"{len(sandboxes)} x {runs}")


async def density(there: Cluster, count: int) -> AsyncIterator[Row]:
    """What a pool of so many idle sandboxes without pre-imports takes, as the node's kubelet counts it.

    Raises:
        RoomError: One node has not as much room, or the namespace's quota is too small.
    """
    node = json.loads(await there.kubectl("get", "nodes", "--output", "json"))["items"][0]
    pods = json.loads(await there.kubectl("get", "pods", "--all-namespaces", "--output", "json"))["items"]
    room = int(node["status"]["allocatable"]["pods"]) - len(pods)
    if room < count:
        raise RoomError(f"the node has room for {room} more pods, not for {count}")
    if quota := await lacking(there, count):
        raise RoomError(f"the quota of {there.sandboxes} has no room for {quota}")
    spec = (await there.get("sandboxtemplates", "bare"))["spec"]
    # Little is asked of the scheduler: what the pods take is what is measured.
    spec["resources"] |= {"cpuRequest": "1m", "memoryRequest": "16Mi"}
    pool = {"templateRef": {"name": DENSITY}, "replicas": count}
    name = node["metadata"]["name"]
    before = await node_memory(there, name)
    try:
        for kind, body in (("SandboxTemplate", spec), ("SandboxPool", pool)):
            await there.kubectl("apply", "-n", there.sandboxes, "-f", "-", stdin=manifest(kind, body))
        await until(f"{count} idle sandboxes", lambda: is_full(there, count), within=PATIENCE)
        takes = await settled(there, name, count)
        after = await node_memory(there, name)
    finally:
        for kind in ("sandboxpool", "sandboxtemplate"):
            await there.kubectl("delete", kind, DENSITY, "-n", there.sandboxes, "--ignore-not-found")
    yield Row("dense", takes, detail=f"{count}")
    yield Row("crowded", [(after - before) / count])
    yield Row("full-node", [after])


def manifest(kind: str, spec: dict[str, Any]) -> str:
    """Return an object of Sandpod's."""
    return json.dumps({"apiVersion": "sandpod.dev/v1alpha1", "kind": kind, "metadata": {"name": DENSITY}, "spec": spec})


async def lacking(there: Cluster, count: int) -> str:
    """Return the number of pods if the quota of the sandboxes' namespace forbids so many more."""
    for quota in await there.items("resourcequotas"):
        hard, used = (quota["status"].get(part, {}).get("pods") for part in ("hard", "used"))
        if hard is not None and int(hard) - int(used or 0) < count:
            return f"{count} more pods"
    return ""


async def is_full(there: Cluster, count: int) -> bool:
    """Return whether the pool has all its sandboxes."""
    pool = await there.get("sandboxpools", DENSITY)
    return bool(pool.get("status", {}).get("readyReplicas", 0) >= count)


async def summary(there: Cluster, node: str) -> dict[str, Any]:
    """Return what a node's kubelet counts."""
    found: dict[str, Any] = json.loads(await there.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/stats/summary"))
    return found


async def node_memory(there: Cluster, node: str) -> float:
    """Return the memory that a node can't give away, MB, as the kubelet counts it from now on."""
    begun = time.time()

    async def look() -> float:
        memory = (await summary(there, node))["node"]["memory"]
        return float(memory["workingSetBytes"]) / MEGA if seconds(memory["time"]) > begun else 0

    return await until("the node's memory", look, within=PATIENCE)


async def settled(there: Cluster, node: str, count: int) -> list[float]:
    """Return the memory of each idle sandbox, MB, once the kubelet has counted all of them after they were ready."""
    ready = time.time()

    async def look() -> list[float]:
        found = [pod for pod in (await summary(there, node))["pods"] if pod["podRef"]["name"].startswith(DENSITY)]
        counted = [pod["memory"] for pod in found if pod.get("memory", {}).get("workingSetBytes")]
        late = [memory for memory in counted if seconds(memory["time"]) > ready]
        return [memory["workingSetBytes"] / MEGA for memory in late] if len(late) >= count else []

    return await until(f"the memory of {count} sandboxes", look, within=PATIENCE)


def seconds(text: str) -> float:
    """Return a time of Kubernetes' as seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()
