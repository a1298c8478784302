"""Measures how operator and claims scale, and prints it beside the budgets: `make bench-scale`.

    python -m bench.scale      on the cluster of KUBECONFIG, in namespaces of its own

API server, scheduler, operator and gateways' backends are real; the pods are on a node that is only said to be there.
A benchmark is no test: it fails only when something does not work at all. Its figures are the machine's as well, so
the machine's load stands beside them.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.rows import HEAD, Row, line
from sandpod_api import names
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.kubernetes import cluster as cluster_module
from sandpod_gateway.backends.kubernetes.backend import KubernetesBackend
from sandpod_gateway.backends.kubernetes.cache.records import status_of
from sandpod_gateway.backends.kubernetes.claims import patches as claims
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError
from support.cluster.cluster import Cluster, until
from support.cluster.fake_node import LABEL, fake_node
from support.cluster.warm_objects import Namespace, gateways
from support.operator.process import Objects, OperatorProcess, namespace
from support.servers.faulty_proxy import NONE, faulty_proxy

MILLIS: Final = 1e3
POOL: Final = "bench"
TEMPLATE: Final = "python"
OWNERS: Final = 50
WRITERS: Final = 24  # requests at once while sandboxes are made
LATER: Final = 5.0  # seconds after its claim at which a sandbox of the steady load is released
PATIENCE: Final = 3600.0
# On a machine that is busy with this, a Lease of some seconds would end the operator.
PATIENT: Final = {"SWEEP_INTERVAL": "1", "LEASE_DURATION": "120", "LEASE_RENEW_DEADLINE": "90"}


CONTAINER_SECURITY: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True)
class Bench:
    """One namespace, with an operator and a gateway's backend of its own."""

    there: Cluster
    operator: OperatorProcess
    backend: KubernetesBackend
    api: cluster_module.Cluster
    again: Callable[[], OperatorProcess]  # kills the operator and starts another one

    async def pool(self, replicas: int, *, most: int | None = None) -> None:
        """Set the pool's size and wait until it is full; with `most`, it then grows by its claims."""
        size = {"replicas": replicas} if most is None else {"autoscale": {"minReplicas": replicas, "maxReplicas": most}}
        await Objects(cluster=self.there).apply("SandboxPool", POOL, templateRef={"name": TEMPLATE}, **size)
        await self.is_full(replicas)

    async def wanted(self) -> list[int]:
        """Collect how many warm sandboxes the pool wants, once a second, until cancelled."""
        found: list[int] = []
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                status = (await self.api.get(names.POOLS, POOL)).get("status", {})
                found.append(status.get("desiredReplicas", 0))
                await asyncio.sleep(1)
        return found

    async def is_full(self, replicas: int) -> None:
        """Wait until the gateway sees so many warm sandboxes."""

        async def look() -> bool:
            return self.backend.warm().get(("", TEMPLATE), 0) >= replicas

        await until("a full pool", look, within=PATIENCE)

    async def claim(self, number: int) -> tuple[str, float]:
        """Claim one and return it, with the milliseconds that took."""
        begun = time.perf_counter()
        record = await self.backend.claim(ClaimRequest(owner=f"owner-{number % OWNERS}", template=TEMPLATE))
        return record.name, (time.perf_counter() - begun) * MILLIS


@asynccontextmanager
async def bench(part: str, *, proxied: Callable[..., None] | None = None, **settings: str) -> AsyncIterator[Bench]:
    """Give a namespace with an operator and a backend; with `proxied`, which hears of all that they write."""
    async with AsyncExitStack() as stack:
        there = stack.enter_context(namespace(part))
        folder = Path(stack.enter_context(TemporaryDirectory()))
        changes: dict[str, Any] = {}
        if proxied is not None:
            await stack.enter_async_context(faulty_proxy(folder / "kubeconfig", NONE, proxied))
            settings["kubeconfig"] = str(folder / "kubeconfig")
            changes["kubeconfig"] = folder / "kubeconfig"
        api = await cluster_module.Cluster.connect(KubernetesSettings(namespace=there.sandboxes))
        stack.push_async_callback(api.close)
        placed = await stack.enter_async_context(fake_node(there))

        def start() -> OperatorProcess:
            made = OperatorProcess(folder / "operator.log", there.sandboxes, **PATIENT, **settings)
            stack.callback(made.kill)
            return made

        operator = start()

        def again() -> OperatorProcess:
            operator.kill()
            return start()

        await operator.is_active(within=PATIENCE)
        backends = gateways(Namespace(api, there.sandboxes), 1, cold_start=False, max_sandboxes=20_000, **changes)
        [backend] = await stack.enter_async_context(backends)
        await Objects(cluster=there).template(TEMPLATE, **placed)
        yield Bench(there, operator, backend, api, again)


async def at_once(count: int, work: Callable[[int], Awaitable[Any]]) -> None:
    """Do something many times, some at a time."""
    left = iter(range(count))

    async def some() -> None:
        for number in left:
            await work(number)

    await asyncio.gather(*(some() for _ in range(WRITERS)))


async def writes(count: int) -> AsyncIterator[Row]:
    """Count what operator and gateway write in the lives of some sandboxes, from the pool to the end, but Events."""
    lives: Counter[str] = Counter()

    def told(method: str, path: str, body: bytes, _status: int, _fault: str) -> None:
        kind, *name = path.rpartition("/namespaces/")[2].split("/")[1:]
        if kind in {names.SANDBOXES, "pods"}:
            # A pod is called as its Sandbox.
            lives[json.loads(body)["metadata"]["name"] if method == "POST" else name[0]] += 1

    async with bench("writes", proxied=told, STATUS_DELAY="300") as one:
        await one.pool(count)
        held = [(await one.claim(number))[0] for number in range(count)]

        async def ready() -> bool:
            found = [await one.api.get(names.SANDBOXES, name) for name in held]
            return all(box["status"].get("phase") == "Ready" for box in found)

        await until("the operator has seen the claims", ready, within=PATIENCE)
        for name in held:
            await one.backend.delete(name)
        await one.is_full(count)
    yield Row("writes", [float(lives[name]) for name in held])


async def refill(count: int) -> AsyncIterator[Row]:
    """Claim a whole pool at once and wait until it is full again."""
    async with bench("refill") as one:
        await one.pool(count)
        await asyncio.gather(*(one.claim(number) for number in range(count)))
        begun = time.perf_counter()
        await one.is_full(count)
        yield Row("refill", [time.perf_counter() - begun])


async def steady(rate: float, seconds: float, pool: int, most: int | None = None) -> AsyncIterator[Row]:
    """Claim at a rate that does not wait for answers; each sandbox is released soon after.

    The pool has a fixed size, or with `most` it follows the claims.
    """
    samples: list[float] = []
    failed: Counter[str] = Counter()
    part = "steady" if most is None else "follow"
    async with bench(part) as one:
        await one.pool(pool, most=most)
        looking = asyncio.create_task(one.wanted())
        used, done = await asyncio.to_thread(one.operator.work)

        async def live(number: int) -> None:
            try:
                name, took = await one.claim(number)
            except SandpodError as error:
                failed[str(error.code)] += 1
                return
            samples.append(took)
            await asyncio.sleep(LATER)
            await one.backend.delete(name)

        begun, tasks = time.perf_counter(), []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(live(number)))
        asked = time.perf_counter() - begun
        await asyncio.gather(*tasks)
        more_used, more_done = await asyncio.to_thread(one.operator.work)
        looking.cancel()
        sizes = await looking
    print(f"  {len(tasks)} claims asked for in {asked:.0f} s, {len(samples)} met, refused: {dict(failed) or 'none'}")
    work = f"the operator took {more_used - used:.1f} s of processor for {more_done - done:.0f} reconciles"
    print(f"  {min(sizes)} to {max(sizes)} warm ones were wanted; {work}")
    yield Row(part, samples)


async def orphans(count: int) -> AsyncIterator[Row]:
    """Leave pods that no Sandbox owns, where no operator is, and measure the sweep that finds them all."""
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {"name": names.CONTAINER, "image": "none", "securityContext": CONTAINER_SECURITY}
    spec = {"containers": [container], "securityContext": security, "nodeSelector": {LABEL: "never"}}
    with ExitStack() as stack:
        there = stack.enter_context(namespace("orphans"))
        folder = Path(stack.enter_context(TemporaryDirectory()))
        pods = await cluster_module.Cluster.connect(KubernetesSettings(namespace=there.sandboxes))

        async def leave(number: int) -> None:
            labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_SANDBOX: f"orphan-{number}"}
            await pods.create("pods", {"metadata": {"name": f"orphan-{number}", "labels": labels}, "spec": spec})

        await at_once(count, leave)
        operator = OperatorProcess(folder / "log", there.sandboxes, SWEEP_INTERVAL="1", ORPHAN_GRACE="0")
        stack.callback(operator.kill)
        begun = 0.0
        while (gone := (await asyncio.to_thread(operator.writes)).get(("delete", "Pod"), 0)) < count:
            begun = begun or (time.perf_counter() if gone else 0.0)
            await asyncio.sleep(0.1)
        yield Row("orphans", [time.perf_counter() - begun])
        await pods.close()


class Work:
    """Samples of the processor time that the operator takes for a reconcile, one for each second of work."""

    def __init__(self, operator: OperatorProcess) -> None:
        self._operator = operator
        self.samples: list[float] = []

    async def run(self) -> None:
        """Take samples until cancelled."""
        used, done = await asyncio.to_thread(self._operator.work)
        while True:
            await asyncio.sleep(1)
            more_used, more_done = await asyncio.to_thread(self._operator.work)
            if more_done - done >= 10:  # else it is the price of doing nothing
                self.samples.append((more_used - used) / (more_done - done) * MILLIS)
                used, done = more_used, more_done


async def many(sizes: list[int]) -> AsyncIterator[Row]:
    """Hold more and more sandboxes, and measure claims and the operator at each size."""
    medians = []
    async with bench("many") as one:
        await one.pool(20)
        work = Work(one.operator)
        working = asyncio.create_task(work.run())
        before = 0
        for size in sizes:
            begun = time.perf_counter()
            await _hold(one, before, size)
            took, before = time.perf_counter() - begun, size
            await one.is_full(20)
            samples = []
            for number in range(40):
                name, taken = await one.claim(number)
                samples.append(taken)
                await one.backend.delete(name)
                await one.is_full(10)
            medians.append(statistics.median(samples))
            print(
                f"  {size} held, the last of them after {took:.0f} s: claim p50 {medians[-1]:.1f} ms, "
                f"operator {one.operator.memory() / 1e6:.0f} MB, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
        working.cancel()
        yield Row("claims", [max(medians) / medians[0]])
        yield Row("operator", [one.operator.memory() / 1e6])
        yield Row("reconcile", work.samples)
        begun = time.perf_counter()
        operator = await asyncio.to_thread(one.again)
        await operator.is_active(within=PATIENCE)

        async def has_looked() -> bool:
            return (await asyncio.to_thread(operator.work))[1] >= before

        await until("all have been looked at", has_looked, within=PATIENCE)
        print(f"  a new operator has looked at {before} after {time.perf_counter() - begun:.0f} s")
        yield Row("restarted", [operator.memory() / 1e6])


async def _hold(one: Bench, first: int, size: int) -> None:
    """Make Sandboxes that are claimed from the start, as a claim does that finds no warm one; wait for their pods."""

    async def make(number: int) -> None:
        request = ClaimRequest(owner=f"owner-{number % OWNERS}", template=TEMPLATE, ttl=86_400, idle_timeout=86_400)
        wanted = claims.check_request(request, KubernetesSettings(default_template=TEMPLATE), datetime.now(UTC))
        await one.api.create(names.SANDBOXES, claims.new_sandbox(f"held-{first + number}", wanted, "bench"))

    async def ready() -> bool:
        owned = (box for owner in range(OWNERS) for box in one.backend._store.owned(f"owner-{owner}"))
        return sum(status_of(box) == "Ready" for box in owned) >= size

    await at_once(size - first, make)
    await until(f"{size} sandboxes are ready", ready, within=PATIENCE)


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Measures how operator and claims scale.")
    parser.add_argument("--parts", nargs="+", default=["writes", "refill", "steady", "follow", "orphans", "many"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000, 10_000], help="sandboxes that are held")
    parser.add_argument("--rate", type=float, default=45, help="claims per second of the steady load")
    parser.add_argument("--seconds", type=float, default=60, help="how long that is")
    parser.add_argument("--pool", type=int, default=200, help="warm sandboxes before it begins")
    parser.add_argument("--most", type=int, default=2000, help="warm sandboxes of the pool that follows its claims")
    parser.add_argument("--orphans", type=int, default=1000, help="pods without an owner")
    return parser.parse_args()


async def measure(options: argparse.Namespace) -> None:
    """Print row by row."""
    parts = {
        "writes": lambda: writes(10),
        "refill": lambda: refill(50),
        "steady": lambda: steady(options.rate, options.seconds, options.pool),
        "follow": lambda: steady(options.rate, options.seconds, options.pool, options.most),
        "orphans": lambda: orphans(options.orphans),
        "many": lambda: many(options.sizes),
    }
    for part in options.parts:
        async for row in parts[part]():
            print(f"{line(row)}  load {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    """Measure what was asked for."""
    print(f"{HEAD}\n{'-' * len(HEAD)}")
    asyncio.run(measure(parse()))


if __name__ == "__main__":
    main()
