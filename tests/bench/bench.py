"""Measures what Sandpod costs and prints it beside the budgets: `make bench` and `make bench-local`.

    python -m bench.bench local      a gateway that is started here, with the local backend
    python -m bench.bench cluster    the gateway that `make install` put into the cluster of KUBECONFIG

A benchmark is no test: it fails only when something does not work at all.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
import yaml

from bench import measures, tokens
from bench.beside import Beside, add_arguments
from bench.client import LOCAL_SIZE, client, large
from bench.console import console
from bench.machine import load, machine, processor_seconds, said
from bench.rows import HEAD, Row, figure, line
from benchmarks.results import Results
from sandpod_gateway.backends.base import Backend, ClaimRequest
from sandpod_gateway.backends.factory import create_backend
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.runner.connection import open_connection
from support.cluster.callers import Caller, Session
from support.cluster.cluster import Cluster, node_url, until
from support.cluster.server import START_SECONDS, serving
from support.command_line import sandpod

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {"local": "bench-local", "cluster": "bench"}


async def frames(backend: Backend, count: int) -> AsyncIterator[Row]:
    """A ping to a runner and back, over a stream of a backend in this process."""
    await backend.start()
    record = await backend.claim(ClaimRequest(owner="bench", session="frames"))
    connection = await open_connection(await backend.open_stream(record.name))
    samples = []
    for index in range(count + measures.WARM_UP):
        start = time.perf_counter()
        await connection.ask("ping")
        if index >= measures.WARM_UP:
            samples.append((time.perf_counter() - start) * measures.MILLIS)
    await connection.close()
    await backend.delete(record.name)
    await backend.close()
    yield Row("frame", samples)


async def team(folder: Path, own: Mapping[str, object]) -> tuple[str, tuple[str, ...]]:
    """Return a key, and the flags of a gateway that does all that a team's endpoint does; `own` are its backend's."""
    keys = folder / "keys.yaml"
    made = json.loads(await sandpod("keys", "create", "--user", "bench", "--file", str(keys), "--output", "json"))
    quota = json.dumps({"calls_per_minute": 1_000_000, "cpu_seconds_per_day": 1_000_000, "concurrent_runs": 100})
    settings = {
        "auth.keys-file": keys,
        "quotas.per-key": quota,
        "quotas.per-user": quota,
        "quotas.per-tenant": quota,
        "usage.directory": folder / "usage",
        "audit.sink": "file",
        "audit.path": folder / "audit.jsonl",
        **own,
    }
    return made["key"], tuple(part for name, value in settings.items() for part in (f"--{name}", str(value)))


async def local(options: argparse.Namespace) -> AsyncIterator[Row]:
    """All rows that a machine without a cluster has."""
    async with AsyncExitStack() as stack:
        url, pid = await stack.enter_async_context(serving("--backend", "local", "--local.warm", "2"))
        session = await stack.enter_async_context(Caller(url, None).connect())
        http = await stack.enter_async_context(httpx2.AsyncClient())

        async def look() -> bool:
            lines = (await http.get(url.removesuffix("/mcp") + "/metrics")).text.splitlines()
            return [line.rpartition(" ")[2] for line in lines if line.startswith("sandpod_warm_sandboxes{")] == ["2.0"]

        async def refilled() -> bool:
            return await until("two warm sandboxes", look, within=START_SECONDS)

        folder = Path(stack.enter_context(TemporaryDirectory()))
        (folder / "secret").write_text("another-value-that-is-masked", encoding="utf-8")
        secrets = json.dumps([{"name": "SERVICE_TOKEN", "file": str(folder / "secret")}])
        key, flags = await team(folder, {"local.secrets": secrets})
        address, _ = await stack.enter_async_context(serving("--backend", "local", "--local.warm", "0", *flags))
        other = await stack.enter_async_context(Caller(address, key).connect())
        parts = [
            *shared(session, options, refilled),
            measures.rest(session, http, f"{url.removesuffix('/mcp')}/api/v1", options.calls, refilled),
            measures.e2b(session, http, f"{url.removesuffix('/mcp')}/e2b", options.calls, refilled),
            client(url, None, options.calls, refilled),
            large(url, None, min(options.copy_large, LOCAL_SIZE)),
            measures.difference(session, other, options.calls),
            console(options.pages, options.consoles),
            measures.rate(session, options.calls, lambda: processor_seconds(pid)),
            frames(create_backend("local"), options.calls),
        ]
        for part in parts:
            async for row in part:
                yield row


async def two_gateways(there: Cluster, count: int) -> AsyncIterator[Row]:
    """What a team's endpoint adds, over pods: two gateways of this checkout, one with all of it and one without."""
    owner = "bench-usage"  # the ConfigMaps of usage go with it
    backend = ("--backend", "kubernetes", "--kubernetes.namespace", there.sandboxes)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": owner}}
        await there.kubectl("apply", "-n", there.namespace, "-f", "-", stdin=json.dumps(made))
        stack.push_async_callback(there.kubectl, "delete", "configmap", owner, "-n", there.namespace)
        place = f"{there.namespace}/{owner}"
        key, flags = await team(folder, {"kubernetes.usage": place, "kubernetes.usage-owner": owner})
        url, _ = await stack.enter_async_context(serving(*backend))
        address, _ = await stack.enter_async_context(serving(*backend, "--kubernetes.secrets", *flags))
        plain = await stack.enter_async_context(Caller(url, None).connect())
        other = await stack.enter_async_context(Caller(address, key).connect())
        async for row in measures.difference(plain, other, count):
            yield row


async def cluster(options: argparse.Namespace, beside: Beside) -> AsyncIterator[Row]:
    """All rows, on the cluster."""
    there = Cluster(
        namespace=os.environ.get("SANDPOD_NAMESPACE", "sandpod"),
        sandboxes=os.environ.get("SANDPOD_SANDBOX_NAMESPACE", "sandpod-sandboxes"),
    )
    keys = json.loads((ROOT / ".build/keys.json").read_text(encoding="utf-8"))
    url = os.environ.get("SANDPOD_URL") or node_url(there.namespace)
    settings = KubernetesSettings(namespace=there.sandboxes)
    key = keys["alice"]["key"]
    async with Caller(f"{url}/mcp", key).connect() as session, httpx2.AsyncClient(headers={"x-api-key": key}) as http:
        parts = [
            *shared(session, options, there.pool_is_full),
            measures.rest(session, http, f"{url}/api/v1", options.calls, there.pool_is_full),
            measures.e2b(session, http, f"{url}/e2b", options.calls, there.pool_is_full),
            client(url, key, options.calls, there.pool_is_full),
            large(url, key, options.copy_large, "large"),
            console(options.pages, options.consoles),
            measures.cold(session, options.cold, "bare"),
            frames(create_backend("kubernetes", kubernetes=settings), options.calls),
            two_gateways(there, options.calls),
        ]
        if await there.kubectl("get", "runtimeclass", "gvisor", "--ignore-not-found"):
            await there.kubectl("apply", "-n", there.sandboxes, "-f", "-", stdin=await gvisor_template(there))
            parts.append(measures.in_template(session, options.calls // 3, "gvisor", "gvisor"))
        parts.append(beside.measure(session, there, url, key, options))
        for part in parts:
            async for row in part:
                yield row


async def gvisor_template(there: Cluster) -> str:
    """Return the default template's image under gVisor, as a manifest."""
    ask = ("get", "sbxt", "default", "-n", there.sandboxes, "-o", "jsonpath={.spec.image}")
    example = yaml.safe_load((ROOT / "manifests/examples/template-gvisor.yaml").read_text(encoding="utf-8"))
    example["spec"]["image"] = await there.kubectl(*ask)
    return json.dumps(example)


def shared(session: Session, options: argparse.Namespace, refilled: measures.Refilled) -> list[AsyncIterator[Row]]:
    """Return the measurements that every backend has, not begun."""
    return [
        measures.calls(session, options.calls, refilled),
        measures.fresh(session, options.fresh, refilled),
        measures.first_byte(session, options.bytes),
        measures.throughput(session, options.megabytes),
        measures.packages(session, options.packages),
    ]


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Measures what Sandpod costs.")
    parser.add_argument("where", choices=("local", "cluster"))
    parser.add_argument("--calls", type=int, default=300, help="calls of each kind")
    parser.add_argument("--fresh", type=int, default=20, help="fresh sandboxes")
    parser.add_argument("--cold", type=int, default=5, help="sandboxes without a pool")
    parser.add_argument("--packages", type=int, default=5, help="sandboxes to install packages into")
    parser.add_argument("--bytes", type=int, default=40, help="streamed lines")
    parser.add_argument("--megabytes", type=int, default=100, help="output to stream")
    parser.add_argument("--copy-large", type=int, default=1024, help="size of a file that memory is measured with, MiB")
    parser.add_argument("--pages", type=int, default=20, help="times that the console's page is loaded")
    parser.add_argument("--consoles", type=int, default=60, help="seconds for which many consoles are open")
    parser.add_argument("--json", type=Path, default=None, help="file for the results; else in .build")
    add_arguments(parser)
    return parser.parse_args()


async def print_tokens() -> None:
    """Print what the tools and the commonest results cost a model, row by row."""
    print(f"\n{tokens.HEAD}\n{'-' * len(tokens.HEAD)}")
    async for text in tokens.tokens():
        print(text.line(), flush=True)


async def main() -> None:
    """Measure, print row by row, and write the results."""
    options = parse()
    where = machine(cluster=options.where == "cluster")
    version = said("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    print(f"load before: {where.load_before[0]}\n{HEAD}\n{'-' * len(HEAD)}")
    rows, beside = [], Beside()
    async for row in local(options) if options.where == "local" else cluster(options, beside):
        rows.append(row)
        print(line(row), flush=True)
    if options.where == "local":
        await print_tokens()
    Results(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        version=version,
        command=f"make {TARGETS[options.where]}",
        arguments=" ".join(sys.argv[2:]),
        machine=where.model_copy(update={"load_after": load()}),
        peers=beside.versions,
        left_out=beside.left_out,
        figures=tuple(figure(row) for row in rows),
    ).write(options.json or ROOT / f".build/{TARGETS[options.where]}.json")


if __name__ == "__main__":
    asyncio.run(main())
