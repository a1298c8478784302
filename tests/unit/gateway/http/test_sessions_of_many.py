"""MCP sessions and calls in numbers, silence and other people's hands: what they cost, and whose they are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import fastmcp
import httpx2
import pytest
from mcp.server import _streamable_http_modern
from mcp.shared.exceptions import MCPError
from prometheus_client import generate_latest
from sse_starlette import EventSourceResponse

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.http.limits import OpenSessions
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.fake_gateway import keys_file
from support.gateway.peers import ACCEPT, INITIALIZE, PING, until
from support.gateway.server import listening

NEW = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "new", "version": "1"},
}
SILENT = "import time\nfor i in range(1000000):\n    time.sleep(0.01)"


def call(code: str, **fields: Any) -> dict[str, Any]:
    params = {"name": "run_python_code", "arguments": {"code": code}, **fields}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


@asynccontextmanager
async def served(settings: Settings, gateway: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        listening(gateway, settings) as address,
        httpx2.AsyncClient(base_url=address, headers=ACCEPT, timeout=30) as client,
    ):
        yield client


async def begin(http: httpx2.AsyncClient, **headers: str) -> dict[str, str]:
    """Begin a session of the older protocol era; gives the headers of its requests."""
    answer = await http.post("/mcp", json=INITIALIZE, headers=headers)
    assert answer.status_code == 200
    session = {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    return {**headers, **session}


@pytest.mark.promise("heartbeat")
@pytest.mark.parametrize("era", ["old", "new"])
async def test_a_silent_call_is_not_silent_on_the_wire(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A proxy's patience is a minute, often; the test has less.
    assert max(_streamable_http_modern._SSE_PING_INTERVAL, EventSourceResponse.DEFAULT_PING_INTERVAL) <= 30
    monkeypatch.setattr(_streamable_http_modern, "_SSE_PING_INTERVAL", 0.05)
    monkeypatch.setattr(EventSourceResponse, "DEFAULT_PING_INTERVAL", 0.05)
    settings = Settings()
    async with served(settings, Gateway(settings, FakeBackend())) as http:
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "run_python_code"}
        body = call(SILENT, _meta=NEW)
        if era == "old":
            headers, body = await begin(http), call(SILENT)
        pings = 0
        async with http.stream("POST", "/mcp", json=body, headers=headers) as answer:
            assert answer.headers["x-accel-buffering"] == "no"
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                pings += line.startswith(": ping")
                if pings == 3:
                    break
        assert pings == 3
        if era == "old":
            await http.delete("/mcp", headers=headers)


@pytest.mark.promise("foreign-ids")
async def test_a_session_can_be_used_with_its_own_key_alone(tmp_path: Path) -> None:
    path, [alice, bob] = keys_file(tmp_path, "alice", "bob")
    settings = Settings(auth=AuthSettings(keys_file=path))
    backend = FakeBackend()
    async with served(settings, Gateway(settings, backend)) as http:
        own = await begin(http, authorization=f"Bearer {alice}")
        assert (await http.post("/mcp", json=call("print(1)"), headers=own)).status_code == 200
        stolen = {**own, "authorization": f"Bearer {bob}"}
        unknown = {**stolen, "mcp-session-id": "0" * 32}
        for method, body in (("POST", call("print(2)")), ("POST", PING), ("GET", None), ("DELETE", None)):
            answer = await http.request(method, "/mcp", json=body, headers=stolen)
            other = await http.request(method, "/mcp", json=body, headers=unknown)
            assert (answer.status_code, answer.text) == (other.status_code, other.text)
            assert answer.status_code == 404
        assert (await http.post("/mcp", json=call("print(1)"), headers=own)).status_code == 200
        assert await backend.list("user:bob") == []
        await http.delete("/mcp", headers=own)


@pytest.mark.promise("uploads")
@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_a_call_that_is_too_large_is_refused_with_the_limit_and_the_other_way(
    era: Literal["legacy", "auto"],
) -> None:
    settings = Settings()
    async with (
        served(settings, Gateway(settings, FakeBackend())) as http,
        fastmcp.Client(f"{http.base_url}/mcp", mode=era) as client,
    ):
        arguments = {"path": "large.bin", "content_base64": "A" * (4 * 2**20)}
        with pytest.raises(MCPError, match=r"over 4194304 bytes\. Call upload_file without content"):
            await client.call_tool("write_file", arguments)
        assert (await client.call_tool("list_files", {}, raise_on_error=False)).structured_content is not None


@pytest.mark.promise("sessions-bounded")
@pytest.mark.parametrize("ended_by", ["DELETE", "nobody"])
async def test_sessions_without_number_leave_nothing(ended_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OpenSessions.__init__.__kwdefaults__ or {}, "idle", 0.5 if ended_by == "nobody" else 3600)
    settings = Settings()
    backend = FakeBackend()
    async with served(settings, Gateway(settings, backend)) as http:
        session = await begin(http)
        await http.post("/mcp", json=call("print(1)"), headers=session)
        await http.delete("/mcp", headers=session)
        before = len(asyncio.all_tasks())
        for _ in range(20):
            session = await begin(http)
            answer = await http.post("/mcp", json=call("print(1)"), headers=session)
            assert answer.status_code == 200
            if ended_by == "DELETE":
                await http.delete("/mcp", headers=session)
        # Each session that is kept has tasks.
        await until(lambda: len(asyncio.all_tasks()) <= before)
        assert (await http.post("/mcp", json=PING, headers=session)).status_code == 404
        assert len(await backend.list("local")) == 1


@pytest.mark.promise("fixed-labels")
async def test_number_of_metrics_does_not_depend_on_that_of_sandboxes() -> None:
    settings = Settings()
    gateway = Gateway(settings, FakeBackend())

    def lines() -> list[str]:
        return [line.rsplit(" ", 1)[0] for line in generate_latest(gateway.metrics.registry).decode().splitlines()]

    async with gateway.running(), fastmcp.Client(gateway.mcp) as client:
        await client.call_tool("run_python_code", {"code": "print(1)", "fresh": True})
        before = lines()
        for number in range(30):
            arguments = {"code": "print(1)", "fresh": True, "args": [f"argument-{number}"]}
            assert not (await client.call_tool("run_python_code", arguments)).is_error
        assert lines() == before
