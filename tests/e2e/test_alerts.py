"""Each alert fires by its real cause, and clears; each panel's query has data. Prometheus has the chart's own rules.

They are those of the release's ConfigMap, with all times divided by `tools/rules.py`. The release is the test's own, in
namespaces of its own, beside a gateway that is a process on this machine.
"""

import asyncio
import json
import math
import shutil
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from cryptography import x509

from rules import sped_up
from support.cluster.callers import Caller, Session
from support.cluster.causes import NOWHERE, SHARED, STUCK, Causes
from support.cluster.cluster import Cluster, node_url, until
from support.cluster.reading import RefusedError, raw, read
from support.cluster.release import LITTLE, SMALL, done, helm, image, remove, run
from support.cluster.server import serving
from support.command_line import sandpod
from support.dashboard_queries import queries
from support.gateway.fake_gateway import keys_file
from support.operator.process import IMAGE
from support.ports import free_port
from support.servers.certificates import make_chain
from support.servers.metrics_adapter import STREAMS, OpenStreams
from support.servers.metrics_adapter import serving as adapting
from support.servers.prometheus import Monitoring, metrics_path, monitoring

CHART: Final = Path(__file__).resolve().parents[2] / "charts" / "sandpod"
NAMESPACE: Final = "sandpod-watched"
SANDBOXES: Final = "sandpod-watched-sandboxes"
SPEED: Final = 15
WITHIN: Final = 300  # of the slowest alert: a quarter of an hour, and what leads to it, on a busy machine
AT_LAST: Final = {
    *("SandpodOperatorWatchStalled", "SandpodNetworkOpen", "SandpodGatewayDown", "SandpodOperatorInactive"),
}
"""Alerts whose cause would keep others from firing."""
CLEARS: Final = {
    *("SandpodPoolEmpty", "SandpodClaimsWait", "SandpodNetworkPolicyWidening", "SandpodOperatorWatchStalled"),
    *("SandpodStreamsFail", "SandpodToolErrors", "SandpodReconcileErrors"),
}


def values(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "auth": {"keys": [entry]},
        "gateway": {
            **image("gateway"),
            **LITTLE,
            "replicas": 1,
            "service": {"type": "NodePort"},
            "config": {"kubernetes": {"warm_streams": 0}},
            # As in manifests/examples/values/autoscaling.yaml, for fewer streams.
            "autoscaling": {
                "enabled": True,
                "minReplicas": 1,
                "maxReplicas": 2,
                "metrics": [
                    {
                        "type": "Pods",
                        "pods": {"metric": {"name": STREAMS}, "target": {"type": "AverageValue", "averageValue": "1"}},
                    }
                ],
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
            },
        },
        "operator": {
            **image("operator"),
            **LITTLE,
            "replicas": 1,
            # Patient, so that it goes on while its heartbeats are missing and on a busy machine.
            "config": {
                "heartbeat_interval": 1,
                "heartbeat_timeout": 600,
                "probe_interval": 2,
                "backoff_max": 2,
                "lease_duration": 90,
                "lease_renew_deadline": 60,
            },
        },
        "sandboxes": {
            "namespace": SANDBOXES,
            **image("sandbox"),
            "admissionPolicy": {"runtimeClassNames": [SHARED]},
            "templates": {"default": {"resources": SMALL, "preimport": []}},
            "pools": {"default": {"replicas": 1}},
        },
        "metrics": {"rules": {"enabled": True}, "runbooks": "https://docs.test/runbooks"},
        "networkPolicy": {"metricsFrom": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]},
    }


@pytest.fixture(scope="module")
def key(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The release's only key."""
    assert cluster.namespace
    made = json.loads(asyncio.run(sandpod("keys", "create", "--user", "alice", "--output", "json")))
    file = tmp_path_factory.mktemp("values") / "values.yaml"
    file.write_text(yaml.safe_dump(values(made["entry"])), encoding="utf-8")
    try:
        helm("install", NAMESPACE, str(CHART), "--create-namespace", "--skip-crds", "--values", str(file))
        yield made["key"]
    finally:
        remove(NAMESPACE, SANDBOXES)
        run("kubectl", "delete", "runtimeclass", SHARED, "--ignore-not-found", "--wait=false")


@dataclass(frozen=True, kw_only=True)
class Lonely:
    """A gateway on this machine, with a certificate that expires soon, keys in a file and an audit log."""

    caller: Caller
    keys: Path
    audit: Path
    metrics: str


@asynccontextmanager
async def lonely(folder: Path) -> AsyncIterator[Lonely]:
    root, chain, private = make_chain(folder, x509.IPAddress(ip_address("127.0.0.1")))
    keys, [secret] = keys_file(folder, "alice")
    audit, port = folder / "audit", free_port()
    audit.mkdir()
    flags = ["--backend", "kubernetes", "--kubernetes.namespace", SANDBOXES, "--metrics-port", str(port)]
    flags += ["--tls.cert", str(chain), "--tls.key", str(private), "--auth.keys-file", str(keys)]
    flags += ["--audit.sink", "file", "--audit.path", str(audit / "audit.jsonl")]
    trust = ssl.create_default_context(cafile=str(root))
    async with serving(*flags) as (url, _):
        yield Lonely(caller=Caller(url, secret, trust), keys=keys, audit=audit, metrics=f"127.0.0.1:{port}")


@pytest.mark.timeout(1200)
async def test_each_alert_fires_by_its_cause_and_clears_and_each_panel_has_data(
    key: str, cluster: Cluster, tmp_path: Path
) -> None:
    rules = read("configmaps", NAMESPACE, "sandpod-rules")["data"]["sandpod.yaml"]
    alerts = {each["alert"] for group in yaml.safe_load(rules)["groups"] for each in group["rules"] if "alert" in each}
    [node, *_] = await cluster.items("nodes")
    causes, sent = Causes(space=SANDBOXES, image=IMAGE), dict[str, dict[str, str]]()
    async with AsyncExitStack() as stack:
        on_its_own = await stack.enter_async_context(AsyncExitStack())
        alone = await on_its_own.enter_async_context(lonely(tmp_path))
        watching = stack.enter_context(
            monitoring(tmp_path, sped_up(rules, SPEED), NAMESPACE, node["metadata"]["name"], {"alone": alone.metrics})
        )

        async def all_of(names: set[str], within: float = WITHIN) -> None:
            async def look() -> bool:
                sent.update(await watching.sent())
                return names <= sent.keys()

            try:
                await until("alerts are sent", look, within=within)
            except AssertionError as error:
                raise AssertionError(f"silent: {sorted(names - sent.keys())}") from error

        session = await stack.enter_async_context(Caller(f"{node_url(NAMESPACE)}/mcp", key).connect())
        other = await on_its_own.enter_async_context(alone.caller.connect())
        async with all_at_once(causes, session, other, alone) as used:
            await all_of(alerts - AT_LAST)

        async with causes.without_right("sandpod-operator", "leases"):
            await all_of({"SandpodOperatorWatchStalled"})

        async def clear() -> bool:
            return not await watching.firing() & CLEARS

        await until("alerts clear", clear, within=WITHIN)
        await panels_have_data(watching, used)

        theirs = await causes.policy({})
        await all_of({"SandpodNetworkOpen"})
        await causes.remove(theirs)

        await on_its_own.aclose()
        await asyncio.to_thread(scale, 0)
        await all_of({"SandpodGatewayDown", "SandpodOperatorInactive"})
        await asyncio.to_thread(scale, 1)

        async def back() -> bool:
            return not await watching.firing() & {"SandpodGatewayDown", "SandpodOperatorInactive"}

        await until("what is back is no alert", back, within=WITHIN)
    assert sent.keys() == alerts
    assert {each["runbook_url"] for each in sent.values()} == {f"https://docs.test/runbooks/{a}.md" for a in alerts}


@asynccontextmanager
async def all_at_once(causes: Causes, session: Session, other: Session, alone: Lonely) -> AsyncIterator[str]:
    """Make the causes of all alerts but the last ones, and undo them; gives a sandbox that is in use all the time."""
    used, deaf = await session.create(), await session.create()
    for tool, code in (("run_python_code", "print(1)"), ("run_js_code", "console.log(1)")):
        await session.call(tool, code=code, sandbox=used)
    shutil.rmtree(alone.audit)
    alone.keys.write_text("no keys: [", encoding="utf-8")
    pool, waits = await causes.no_node()
    theirs = await causes.policy({"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}]})
    await causes.shared_kernel()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(causes.refused_status())
        stuck = await causes.sandbox(STUCK, "default")
        # More than the pool has, and then their pods are gone.
        lost = await asyncio.gather(*(session.create() for _ in range(4)))
        done("kubectl", "delete", "pods", "-n", SANDBOXES, *lost, "--now", "--wait=false")
        await stack.enter_async_context(causes.without_right("sandpod-gateway", "pods/exec"))

        async def call() -> None:
            while True:
                await session.call("create_sandbox", template=NOWHERE, cold_start=False)
                await session.python("print(1)", sandbox=used)
                assert (await session.python("print(1)", sandbox=deaf)).is_error
                await other.call("list_sandboxes")
                await asyncio.sleep(0.5)  # a pace, not a wait

        calls = asyncio.create_task(call())
        stack.callback(calls.cancel)
        yield used
    await causes.remove(theirs, pool, waits, stuck)


async def panels_have_data(watching: Monitoring, sandbox: str) -> None:
    """Run each panel's query over all that has happened."""
    chosen = {
        "__rate_interval": "10m",
        "__range": "10m",
        "namespace": NAMESPACE,
        "sandboxes": SANDBOXES,
        "tenant": ".*",
        "pod": sandbox,
    }

    async def empty() -> list[str]:
        found = []
        for page, panel, query in queries(**chosen):
            if not any(map(math.isfinite, await watching.values(query))):
                found.append(f"{page}: {panel}: {query}")
        return found

    async def look() -> bool:
        return not await empty()

    try:
        await until("all panels have data", look, within=60)
    except AssertionError:
        raise AssertionError("\n".join(await empty())) from None


def scale(replicas: int) -> None:
    parts = ("deployment/sandpod-gateway", "deployment/sandpod-operator")
    done("kubectl", "scale", "-n", NAMESPACE, *parts, f"--replicas={replicas}")


@pytest.fixture
def custom_metrics(key: str, cluster: Cluster, tmp_path: Path) -> Iterator[None]:
    """The gateways' open streams, as autoscalers get them."""
    assert key
    watched = replace(cluster, namespace=NAMESPACE, sandboxes=SANDBOXES)

    def scraped() -> dict[str, str]:
        found = {}
        for name in asyncio.run(watched.component_pods("gateway")):
            with suppress(RefusedError):  # it does not listen yet
                found[name] = raw(metrics_path(NAMESPACE, name)).decode()
        return found

    with adapting(OpenStreams(NAMESPACE, scraped), NAMESPACE, tmp_path):
        yield


@pytest.mark.usefixtures("custom_metrics")
async def test_open_streams_scale_the_gateways_up_and_down(key: str, cluster: Cluster) -> None:
    async def has(replicas: int) -> bool:
        found = await cluster.get("deployments", "sandpod-gateway", namespace=NAMESPACE)
        return int(found["spec"]["replicas"]) == replicas

    async with Caller(f"{node_url(NAMESPACE)}/mcp", key).connect() as session:
        boxes = await asyncio.gather(*(session.create() for _ in range(2)))
        await asyncio.gather(*(session.python("print(1)", sandbox=sandbox) for sandbox in boxes))
        await until("there are two gateways", partial(has, 2), within=120)
        await asyncio.gather(*(session.close(sandbox) for sandbox in boxes))
    await until("there is one gateway", partial(has, 1), within=120)
