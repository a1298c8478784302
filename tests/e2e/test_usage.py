"""Limits that two gateways share, and what they keep of use."""

import json
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from support.cluster.callers import Caller, Session
from support.cluster.cluster import Cluster, ClusterError, forwarded, until
from support.command_line import sandpod

LIMIT = 5  # calls per minute of the user of this test, as values.yaml has it


async def usage(cluster: Cluster) -> dict[str, Any]:
    """Return what the user of this test has used today."""
    place = f"{cluster.namespace}/sandpod-gateway-usage"
    rows = json.loads(await sandpod("usage", "--configmaps", place, "--output", "json"))
    return next((row for row in reversed(rows) if row["user"] == "erin"), {"runs": 0, "calls": 0, "cpu_seconds": 0})


async def takes(address: str, key: str) -> bool:
    async with httpx2.AsyncClient() as http:
        answer = await http.post(address, json={}, headers={"authorization": f"Bearer {key}"})
    return answer.status_code != 401


async def is_refused(session: Session) -> bool:
    return (await session.call("list_sandboxes")).error == "rate_limited"


async def share_a_limit(addresses: list[str], key: str) -> float:
    """Use up the limit at one gateway until the other one refuses, too; return the seconds of processor time."""
    for address in addresses:
        await until("the gateway takes the new key", lambda at=address: takes(at, key), within=5)  # type: ignore[misc]
    one, other = (Caller(address, key) for address in addresses)
    async with one.connect() as here, other.connect() as there:
        done = await here.python("print(sum(range(10_000_000)))")
        assert done.error is None, done
        await here.close(done["sandbox"])
        assert [await is_refused(here) for _ in range(LIMIT)] == [False] * (LIMIT - 2) + [True] * 2
        await until("the other gateway knows of these calls", lambda: is_refused(there), within=5)
    return float(done["cpu_ms"]) / 1e3


@pytest.mark.promise("limits-shared")
async def test_limit_holds_at_both_gateways_and_what_was_used_is_kept(cluster: Cluster) -> None:
    secret = f"{cluster.namespace}/sandpod-keys"
    made = json.loads(await sandpod("keys", "create", "--user", "erin", "--secret", secret, "--output", "json"))
    first, second = await cluster.component_pods("gateway")
    earlier = await usage(cluster)
    with ExitStack() as stack:
        ports = [stack.enter_context(forwarded(cluster.namespace, f"pod/{pod}", 8000)) for pod in (first, second)]
        seconds = await share_a_limit([f"http://127.0.0.1:{port}/mcp" for port in ports], made["key"])

    async def is_kept() -> bool:
        row = await usage(cluster)
        return bool(row["runs"] == earlier["runs"] + 1 and row["calls"] >= earlier["calls"] + LIMIT)

    await until("the run and all calls are kept", is_kept, within=30)
    after = await usage(cluster)
    assert after["cpu_seconds"] - earlier["cpu_seconds"] == pytest.approx(seconds, abs=0.002)
    listed = json.loads(await sandpod("keys", "list", "--secret", secret, "--output", "json"))
    assert next(key for key in listed if key["id"] == made["id"])["last_used"] is not None
    await sandpod("keys", "revoke", made["id"], "--secret", secret)


@pytest.mark.promise("least-rights")
async def test_gateway_can_change_no_config_map_but_those_of_usage(cluster: Cluster) -> None:
    account = f"system:serviceaccount:{cluster.namespace}:sandpod-gateway"
    for command in (
        ("patch", "configmap", "sandpod-operator-config", "--type=merge", "-p", '{"data": {"config.yaml": "{}"}}'),
        ("create", "configmap", "sandpod-gateway-usages"),
        ("delete", "configmap", "sandpod-gateway-config"),
    ):
        with pytest.raises(ClusterError, match="may change only the ConfigMaps that usage is kept in"):
            await cluster.kubectl(*command, "-n", cluster.namespace, "--as", account, "--dry-run=server")
