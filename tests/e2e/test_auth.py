"""Nobody gets in without a key, and nobody sees what is another's."""

import json
from typing import Any

import httpx2
import pytest

from support.cluster.callers import Caller, Session
from support.cluster.cluster import Cluster

CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "create_sandbox", "arguments": {}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.mark.promise("key-required")
@pytest.mark.parametrize("key", [None, "sandpod_wrong", "x" * 5000], ids=["none", "wrong", "long"])
async def test_without_a_valid_key_the_answer_is_401_and_nothing_is_made(
    gateway_url: str, cluster: Cluster, key: str | None
) -> None:
    before = await cluster.made()
    headers = ACCEPT | ({"Authorization": f"Bearer {key}"} if key is not None else {})
    async with httpx2.AsyncClient() as client:
        answer = await client.post(f"{gateway_url}/mcp", json=CALL, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert await cluster.made() == before


async def test_health_needs_no_key_and_tells_nothing(gateway_url: str) -> None:
    async with httpx2.AsyncClient() as client:
        for path in ("/healthz", "/readyz"):
            answer = await client.get(f"{gateway_url}{path}")
            assert answer.status_code == 200
            assert len(answer.content) < 300


USES: list[tuple[str, dict[str, Any]]] = [
    ("run_python_code", {"code": "print(1)"}),
    ("run_js_code", {"code": "console.log(1)"}),
    ("run_shell_command", {"command": "cat secret.txt"}),
    ("get_sandbox", {}),
    ("close_sandbox", {}),
    ("close_sandbox", {"force": True}),
    ("read_file", {"path": "secret.txt"}),
    ("write_file", {"path": "secret.txt", "text": "mine"}),
    ("list_files", {"path": "."}),
]


@pytest.mark.promise("owners-apart", "foreign-ids")
@pytest.mark.parametrize(("tool", "arguments"), USES, ids=str)
async def test_someone_elses_sandbox_answers_as_one_that_does_not_exist(
    session: Session, sandbox: str, bob: Caller, tool: str, arguments: dict[str, Any]
) -> None:
    await session.call("write_file", path="secret.txt", text="alice's", sandbox=sandbox)
    absent = sandbox[:-1] + ("0" if sandbox[-1] != "0" else "1")
    async with bob.connect() as other:
        theirs = await other.call(tool, sandbox=sandbox, **arguments)
        nothing = await other.call(tool, sandbox=absent, **arguments)
    assert theirs.error == "session_not_found"
    assert json.dumps(theirs.data).replace(sandbox, "HANDLE") == json.dumps(nothing.data).replace(absent, "HANDLE")
    kept = await session.call("read_file", path="secret.txt", sandbox=sandbox)
    assert kept["content"] == "alice's"


async def test_listing_shows_only_ones_own(sandbox: str, bob: Caller) -> None:
    async with bob.connect() as other:
        listed = await other.call("list_sandboxes")
    assert sandbox not in json.dumps(listed.data)
