"""API keys in the Secret of an installation: `sandpod keys` changes them, and every gateway follows at once."""

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import httpx2
import pytest

from sandpod_gateway.audit.verify import Verification
from support.cluster.callers import Caller
from support.cluster.cluster import Cluster, forwarded, until
from support.command_line import sandpod

WITHIN: Final = 5.0  # seconds for a watch's event to pass through a busy cluster
HELLO: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@pytest.fixture(scope="module")
def gateways(cluster: Cluster) -> Iterator[list[str]]:
    """The addresses of all gateways, each by itself."""
    with ExitStack() as stack:
        pods = asyncio.run(cluster.component_pods("gateway"))
        ports = [stack.enter_context(forwarded(cluster.namespace, f"pod/{pod}", 8000)) for pod in pods]
        assert len(ports) == 2
        yield [f"http://127.0.0.1:{port}/mcp" for port in ports]


async def sandpod_keys(cluster: Cluster, *arguments: str) -> str:
    """Run `sandpod keys` on the installation's Secret; return what it prints."""
    return await sandpod("keys", *arguments, "--secret", f"{cluster.namespace}/sandpod-keys")


async def create(cluster: Cluster, *arguments: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(
        await sandpod_keys(cluster, "create", "--user", "carol", *arguments, "--output", "json")
    )
    return made


async def taken(gateways: list[str], key: str) -> list[bool]:
    """Return which gateways take a key."""
    headers = {"authorization": f"Bearer {key}", "accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient() as http:
        answers = [await http.post(address, json=HELLO, headers=headers) for address in gateways]
    assert {answer.status_code for answer in answers} <= {200, 401}
    return [answer.status_code == 200 for answer in answers]


async def all_take(gateways: list[str], key: str, *, wanted: bool) -> None:
    async def look() -> bool:
        return await taken(gateways, key) == [wanted] * len(gateways)

    await until(f"every gateway {'takes' if wanted else 'refuses'} the key", look, within=WITHIN)


@pytest.mark.promise("key-revoked")
async def test_key_works_at_every_gateway_until_it_is_revoked(cluster: Cluster, gateways: list[str]) -> None:
    made = await create(cluster)
    await all_take(gateways, made["key"], wanted=True)
    assert made["id"] in await sandpod_keys(cluster, "list")
    await sandpod_keys(cluster, "revoke", made["id"])
    await all_take(gateways, made["key"], wanted=False)
    assert made["id"] not in await sandpod_keys(cluster, "list")


async def test_rotated_key_works_beside_its_successor_until_the_grace_is_over(
    cluster: Cluster, gateways: list[str]
) -> None:
    made = await create(cluster, "--tools", "core")
    new = json.loads(await sandpod_keys(cluster, "rotate", made["id"], "--output", "json"))
    await all_take(gateways, new["key"], wanted=True)
    assert await taken(gateways, made["key"]) == [True, True]
    last = json.loads(await sandpod_keys(cluster, "rotate", new["id"], "--grace", "0", "--output", "json"))
    await all_take(gateways, new["key"], wanted=False)
    assert await taken(gateways, last["key"]) == [True, True]
    await sandpod_keys(cluster, "revoke", "--user", "carol")
    assert await taken(gateways, made["key"]) == [False, False]


@pytest.mark.promise("key-revoked")
async def test_mistake_in_the_secret_locks_nobody_out_and_its_removal_everybody(
    cluster: Cluster, gateways: list[str], keys: dict[str, str]
) -> None:
    secret = await cluster.get("secrets", "sandpod-keys", namespace=cluster.namespace)

    async def put(content: bytes) -> None:
        change = {"data": {"keys.yaml": base64.b64encode(content).decode()}}
        await cluster.kubectl(
            "patch", "secret", "sandpod-keys", "-n", cluster.namespace, "--type", "merge", "-p", json.dumps(change)
        )

    try:
        await put(b"keys: [oops")
        assert await taken(gateways, keys["alice"]) == [True, True]
        await cluster.kubectl("delete", "secret", "sandpod-keys", "-n", cluster.namespace)
        await all_take(gateways, keys["alice"], wanted=False)
    finally:
        kept = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sandpod-keys"}, "data": secret["data"]}
        for name in ("labels", "annotations"):
            kept["metadata"][name] = secret["metadata"].get(name, {})
        await cluster.kubectl("apply", "-n", cluster.namespace, "-f", "-", stdin=json.dumps(kept))
    await all_take(gateways, keys["alice"], wanted=True)


@pytest.mark.promise("audit-recorded")
async def test_logs_of_the_gateways_pods_verify_and_say_who_ran_what(cluster: Cluster, alice: Caller) -> None:
    async with alice.connect() as session:
        run = await session.python("print('recorded')")
    pods = await cluster.component_pods("gateway")

    async def recorded() -> list[dict[str, Any]]:
        logs = [await cluster.kubectl("logs", pod, "-n", cluster.namespace, "--tail", "2000") for pod in pods]
        verification, lines = Verification(), "".join(logs).encode().splitlines()
        verification.read("all", lines)
        verification.finish()
        assert verification.problems == []
        records = [json.loads(line) for line in lines if line.startswith(b'{"audit":')]
        return [record for record in records if record.get("run_id") == run["run_id"]]

    [record] = await until("the run is in a pod's log", recorded, within=WITHIN)
    assert (record["user"], record["tool"], record["outcome"]) == ("user:alice", "run_python_code", "ok")
    assert record["replica"].partition("/")[0] in pods


@pytest.mark.promise("key-scopes")
async def test_key_of_a_template_has_sandboxes_of_that_template_alone(
    cluster: Cluster, gateways: list[str], alice: Caller
) -> None:
    made = await create(cluster, "--templates", "bare")
    await all_take(gateways, made["key"], wanted=True)
    async with Caller(alice.url, made["key"]).connect() as session:
        reply = await session.python("print('here')")
        refused = await session.call("create_sandbox", template="default")
        assert refused.data["error"] == "forbidden"
        sandbox = await cluster.sandbox(reply["sandbox"])
        assert sandbox["spec"]["templateRef"]["name"] == "bare"
        await session.close(reply["sandbox"])
    wide = await create(cluster)
    await all_take(gateways, wide["key"], wanted=True)
    async with Caller(alice.url, wide["key"]).connect() as all_templates:
        default = await all_templates.python("print('here')")
        async with Caller(alice.url, made["key"]).connect() as session:
            refused = await session.call("run_python_code", code="print('there')")
            assert (refused.data["error"], "template default" in refused.data["message"]) == ("forbidden", True), (
                refused
            )
        await all_templates.close(default["sandbox"])
    await sandpod_keys(cluster, "revoke", "--user", "carol")
