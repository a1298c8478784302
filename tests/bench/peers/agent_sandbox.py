"""agent-sandbox (kubernetes-sigs): from a SandboxClaim to its Ready condition, out of a pool of warm sandboxes.

Its controller has to be installed in the cluster; nothing here installs it.
"""

import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any, Final

from bench.peers.plan import MILLIS, PeerError, Plan
from bench.rows import Row
from sandpod_kube.client import KubeClient
from sandpod_kube.configuration import load
from sandpod_kube.errors import ClusterError, NotFoundError
from sandpod_kube.resources import Resource

GROUP: Final = "extensions.agents.x-k8s.io"
VERSION: Final = "v1beta1"
TEMPLATES: Final = Resource(GROUP, VERSION, "sandboxtemplates", "SandboxTemplate")
POOLS: Final = Resource(GROUP, VERSION, "sandboxwarmpools", "SandboxWarmPool")
CLAIMS: Final = Resource(GROUP, VERSION, "sandboxclaims", "SandboxClaim")
NAME: Final = "bench"
NAMESPACE: Final = "default"
WARM: Final = 2
"""As many as the pool of Sandpod has that is measured."""
SILENCE: Final = 60.0
BY: Final = "agent-sandbox"


def manifest(resource: Resource, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return an object."""
    return {**resource.header, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def template(image: str) -> dict[str, Any]:
    """Return a template of the same image, whose container waits."""
    container: dict[str, Any] = {"name": "sandbox", "image": image, "command": ["sleep", "infinity"]}
    container["resources"] = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}
    return {"podTemplate": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}}


def is_ready(claim: dict[str, Any]) -> bool:
    """Return whether a claim has its sandbox."""
    conditions = claim.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def is_full(pool: dict[str, Any]) -> bool:
    """Return whether a pool has all its warm sandboxes."""
    return bool(pool.get("status", {}).get("readyReplicas", 0) >= WARM)


async def changed(client: KubeClient, resource: Resource, made: dict[str, Any], done: Any) -> None:
    """Wait until an object is as it is wanted, by a watch from the moment in which it was written.

    Raises:
        PeerError: The API server ended the watch first, or nothing came for long.
    """
    name, since = made["metadata"]["name"], made["metadata"]["resourceVersion"]
    query = {"fieldSelector": f"metadata.name={name}"}
    async with aclosing(client.watch(resource, NAMESPACE, query, since, silence=SILENCE)) as events:
        async for event in events:
            if event["type"] in {"ADDED", "MODIFIED"} and done(event["object"]):
                return
    raise PeerError(f"{resource.kind} {name} did not become what it is waited for")


async def refilled(client: KubeClient) -> None:
    """Wait until the pool is full."""
    pool = await client.get(POOLS, NAMESPACE, NAME)
    if not is_full(pool):
        await changed(client, POOLS, pool, is_full)


async def claims(client: KubeClient, count: int) -> list[float]:
    """Return the milliseconds from each claim's request to its readiness; the pool is full before each."""
    samples = []
    for index in range(count + 1):
        await refilled(client)
        begun = time.perf_counter()
        made = await client.create(CLAIMS, manifest(CLAIMS, f"{NAME}-{index}", {"warmPoolRef": {"name": NAME}}))
        await changed(client, CLAIMS, made, is_ready)
        if index:
            samples.append((time.perf_counter() - begun) * MILLIS)
        await client.delete(CLAIMS, NAMESPACE, f"{NAME}-{index}")
    return samples


async def agent_sandbox(plan: Plan) -> AsyncIterator[Row]:
    """Claims, one after the other.

    Raises:
        PeerError: The cluster has no such controller, or it does not do what it is asked for.
    """
    client = KubeClient(await load(None, None), manager="sandpod-bench", timeout=30)
    try:
        await client.list_page(CLAIMS, NAMESPACE, {"limit": "1"})
        await client.apply(TEMPLATES, manifest(TEMPLATES, NAME, template(plan.image)))
        await client.apply(POOLS, manifest(POOLS, NAME, {"replicas": WARM, "sandboxTemplateRef": {"name": NAME}}))
        yield Row("claim", await claims(client, plan.fresh), BY)
    except NotFoundError as error:
        raise PeerError("its controller is not installed in this cluster") from error
    except ClusterError as error:
        raise PeerError(str(error)) from error
    finally:
        for resource in (POOLS, TEMPLATES):
            with suppress(ClusterError):
                await client.delete(resource, NAMESPACE, NAME)
        await client.close()
