"""Measures how operator and claims scale, and prints it beside the budgets: `make bench-scale`.

    python -m bench.scale      on the cluster of KUBECONFIG, in a namespace of its own

API server, scheduler, operator and gateways' backends are real; the pods are on a node that is only said to be there.
A benchmark is no test: it fails only when something does not work at all.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.rows import HEAD, Row, line
from e2e.cluster import Cluster, until
from e2e.fake_node import LABEL, fake_node
from e2e.operator_process import Objects, OperatorProcess, namespace
from e2e.warm_objects import Namespace, gateways
from sandpod_api import names
from sandpod_gateway.backends import cluster as cluster_module
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.kubernetes import KubernetesBackend
from sandpod_gateway.backends.kubernetes_settings import KubernetesSettings

MILLIS: Final = 1e3
POOL: Final = "bench"
OWNERS: Final = 50
LATER: Final = 5.0  # seconds after its claim at which a sandbox of the steady load is released


CONTAINER_SECURITY: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


class Bench:
    """One namespace, with an operator and a gateway's backend of its own."""

    def __init__(self, there: Cluster, operator: OperatorProcess, backend: KubernetesBackend) -> None:
        self.there = there
        self.operator = operator
        self.backend = backend
        self.objects = Objects(cluster=there)

    async def pool(self, replicas: int) -> float:
        """Set the pool's size and return the seconds until it is full."""
        begun = time.perf_counter()
        await self.objects.apply(
            "SandboxPool",
            POOL,
            templateRef={"name": "python"},
            replicas=replicas,
            updateStrategy={"maxSurge": 50},
        )
        await self.is_full(replicas)
        return time.perf_counter() - begun

    async def is_full(self, replicas: int) -> None:
        """Wait until the gateway sees so many warm sandboxes."""

        async def look() -> bool:
            return self.backend.warm().get("python", 0) >= replicas

        await until("a full pool", look, within=1800)

    async def claim(self, owner: str) -> tuple[str, float]:
        """Claim one and return it, with the milliseconds that took."""
        begun = time.perf_counter()
        record = await self.backend.claim(ClaimRequest(owner=owner, template="python"))
        return record.name, (time.perf_counter() - begun) * MILLIS


async def refill(bench: Bench, count: int) -> AsyncIterator[Row]:
    """Claim a whole pool at once and wait until it is full again."""
    await bench.pool(count)
    held = await asyncio.gather(*(bench.claim(f"owner-{n % OWNERS}") for n in range(count)))
    begun = time.perf_counter()
    await bench.is_full(count)
    yield Row("refill", [time.perf_counter() - begun])
    await asyncio.gather(*(bench.backend.delete(name) for name, _ in held))


async def steady(bench: Bench, rate: float, seconds: float, pool: int) -> AsyncIterator[Row]:
    """Claim at a rate that does not wait for answers; each sandbox is released soon after."""
    await bench.pool(pool)
    samples: list[float] = []
    failed = 0

    async def one(number: int) -> None:
        nonlocal failed
        begun = time.perf_counter()
        try:
            name, _ = await bench.claim(f"owner-{number % OWNERS}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is counted and said
            failed += 1
            print(f"  a claim failed: {error}")
            return
        samples.append((time.perf_counter() - begun) * MILLIS)
        await asyncio.sleep(LATER)
        await bench.backend.delete(name)

    begun, tasks = time.perf_counter(), []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(one(number)))
    await asyncio.gather(*tasks)
    if failed:
        print(f"  {failed} of {len(tasks)} claims failed")
    yield Row("steady", samples)


async def orphans(bench: Bench, count: int) -> AsyncIterator[Row]:
    """Leave pods that no Sandbox owns and wait until the sweep has taken them."""
    api = await cluster_module.Cluster.connect(KubernetesSettings(namespace=bench.there.sandboxes))
    slots = asyncio.Semaphore(16)

    async def leave(number: int) -> None:
        name = f"orphan-{number}"
        pod = {
            "metadata": {"name": name, "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_SANDBOX: name}},
            "spec": {
                "containers": [{"name": names.CONTAINER, "image": "none", "securityContext": CONTAINER_SECURITY}],
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "nodeSelector": {LABEL: "never"},
            },
        }
        async with slots:
            await api._call("POST", f"/api/v1/namespaces/{bench.there.sandboxes}/pods", body=pod)

    async def left() -> int:
        query = {"labelSelector": f"{names.LABEL_SANDBOX}"}
        page = await api._call("GET", f"/api/v1/namespaces/{bench.there.sandboxes}/pods", query=query)
        return sum(pod["metadata"]["name"].startswith("orphan-") for pod in page["items"])

    await asyncio.gather(*(leave(number) for number in range(count)))
    begun = None
    while (there := await left()) > 0:
        if there < count and begun is None:
            begun = time.perf_counter()
        await asyncio.sleep(0.1)
    yield Row("orphans", [time.perf_counter() - (begun or time.perf_counter())])
    await api.close()


async def many(bench: Bench, sizes: list[int]) -> AsyncIterator[Row]:
    """Hold more and more sandboxes, and measure claims and the operator's memory at each size."""
    await bench.pool(50)
    held = 0
    medians = []
    for size in sizes:
        while held < size:
            batch = min(50, size - held)
            await bench.is_full(batch)
            await asyncio.gather(*(bench.claim(f"owner-{n % OWNERS}") for n in range(batch)))
            held += batch
        await bench.is_full(50)
        samples = []
        for number in range(40):
            name, took = await bench.claim(f"owner-{number % OWNERS}")
            samples.append(took)
            await bench.backend.delete(name)
        medians.append(statistics.median(samples))
        print(f"  {size} sandboxes: claim p50 {medians[-1]:.1f} ms, operator {bench.operator.memory() / 1e6:.0f} MB")
    yield Row("claims", [max(medians) / medians[0]])
    yield Row("operator", [bench.operator.memory() / 1e6])
    yield Row("reconcile", [bench.operator.reconcile_cpu() * MILLIS])


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Measures how operator and claims scale.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000], help="sandboxes that are held")
    parser.add_argument("--rate", type=float, default=45, help="claims per second of the steady load")
    parser.add_argument("--seconds", type=float, default=60, help="how long that is")
    parser.add_argument("--pool", type=int, default=200, help="warm sandboxes before it begins")
    parser.add_argument("--orphans", type=int, default=1000, help="pods without an owner")
    return parser.parse_args()


async def measure(options: argparse.Namespace, there: Cluster, operator: OperatorProcess) -> None:
    """Print row by row."""
    api = await cluster_module.Cluster.connect(KubernetesSettings(namespace=there.sandboxes))
    try:
        async with fake_node(there), gateways(Namespace(api, there.sandboxes), 1, cold_start=False) as [backend]:
            await operator.is_active()
            bench = Bench(there, operator, backend)
            await bench.objects.template(
                nodeSelector={LABEL: "true"}, tolerations=[{"key": LABEL, "operator": "Exists"}]
            )
            parts = [
                refill(bench, 50),
                steady(bench, options.rate, options.seconds, options.pool),
                orphans(bench, options.orphans),
                many(bench, options.sizes),
            ]
            for part in parts:
                async for row in part:
                    print(line(row), flush=True)
    finally:
        await api.close()


def main() -> None:
    """Measure in a namespace of its own."""
    options = parse()
    print(f"{HEAD}\n{'-' * len(HEAD)}")
    with ExitStack() as stack:
        there = stack.enter_context(namespace("bench"))
        folder = Path(stack.enter_context(TemporaryDirectory()))
        operator = OperatorProcess(folder / "operator.log", there.sandboxes, SWEEP_INTERVAL="1", ORPHAN_GRACE="5")
        stack.callback(operator.kill)
        asyncio.run(measure(options, there, operator))


if __name__ == "__main__":
    main()
