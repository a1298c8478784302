"""Kubernetes' own autoscaler drives a pool by the operator's metrics, as the chart sets it up."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.chart.render import render
from support.cluster.cluster import until
from support.operator.process import Objects, OperatorProcess, running
from support.servers.metrics_adapter import Adapter, serving

POOL = "default"
AUTOSCALING = {
    "enabled": True,
    "minReplicas": 1,
    "maxReplicas": 5,
    # One claim asks for one and a half.
    "claimsPerSecond": "650m",
    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
}


@pytest.fixture
def operator(objects: Objects, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with running(tmp_path_factory.mktemp("operator") / "log", objects.namespace) as made:
        yield made


@pytest.fixture
def adapter(objects: Objects, operator: OperatorProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapter]:
    made = Adapter(lambda: operator.get("/metrics"))
    with serving(made, objects.namespace, tmp_path_factory.mktemp("adapter")):
        yield made


def rendered(objects: Objects, folder: Any) -> list[dict[str, Any]]:
    """Return the pool and its autoscaler as the chart installs them."""
    file = folder / "values.yaml"
    values = {"namespace": objects.namespace, "pools": {POOL: {"autoscaling": AUTOSCALING}}}
    file.write_text(yaml.safe_dump({"sandboxes": values}), encoding="utf-8")
    kinds = {"SandboxPool", "HorizontalPodAutoscaler"}
    return [m for m in render(files=(file,)) if m["kind"] in kinds]


async def wanted(objects: Objects, replicas: int) -> bool:
    """Look whether the pool has been set to that many."""
    return bool((await objects.cluster.get("sandboxpools", POOL))["spec"]["replicas"] == replicas)


async def is_content(objects: Objects) -> None:
    """Wait until the autoscaler says that it gets the metric and may scale the pool."""

    async def look() -> bool:
        found = (await objects.status(POOL, "horizontalpodautoscalers")).get("conditions", [])
        return {"ScalingActive", "AbleToScale"} <= {c["type"] for c in found if c["status"] == "True"}

    await until("the autoscaler has what it needs", look, within=60)


async def test_claims_make_the_pool_larger_quiet_makes_it_smaller_and_what_is_held_stays(
    objects: Objects, adapter: Adapter, tmp_path: Any
) -> None:
    manifests = rendered(objects, tmp_path)
    await objects.template(POOL)
    for manifest in manifests:
        await objects.put(manifest)
    await objects.pool_has(POOL, 1)
    (held,) = await objects.cluster.warm()
    await objects.claim(held)
    await until("room for more claims", lambda: wanted(objects, 2), within=60)
    await objects.pool_has(POOL, 2)
    await is_content(objects)
    # What an upgrade of the chart applies again does not set it back.
    for manifest in manifests:
        await objects.put(manifest)
    assert await wanted(objects, 2)
    oldest_first = await by_age(objects)
    await asyncio.to_thread(adapter.quiet)
    await until("no more than the least", lambda: wanted(objects, 1), within=60)
    await objects.pool_has(POOL, 1)
    assert await objects.cluster.warm() <= set(oldest_first[-1:])
    assert (await objects.status(held))["phase"] == "Ready"
    assert set(adapter.asked) == {f"pool={POOL}"}


async def by_age(objects: Objects) -> list[str]:
    """Return the names of the warm sandboxes, the oldest first."""
    warm = await objects.cluster.items("sandboxes", selector="sandpod.dev/state=warm")
    return [s["metadata"]["name"] for s in sorted(warm, key=lambda s: s["metadata"]["creationTimestamp"])]
