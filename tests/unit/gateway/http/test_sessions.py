"""Where a client ends over HTTP in either protocol era (a session, a lost connection), and what ends with it."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.settings import Settings
from support.gateway.peers import ACCEPT, INITIALIZE, PING, until
from support.gateway.server import listening

FOREVER = "import time\nprint('begun', flush=True)\nfor i in range(1000000):\n    time.sleep(0.01)"
CALL: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "run_python_code", "arguments": {"code": FOREVER}, "_meta": {"progressToken": 1}},
}


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def http(backend: FakeBackend) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with a session of its own."""
    settings = Settings()
    async with (
        listening(Gateway(settings, backend), settings) as address,
        httpx2.AsyncClient(base_url=address, headers=ACCEPT) as client,
    ):
        answer = await client.post("/mcp", json=INITIALIZE)
        client.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        client.headers["mcp-protocol-version"] = "2025-11-25"
        yield client


def running(backend: FakeBackend) -> int:
    return sum(len(cell.runner.runs) for cell in backend.launcher.cells)


async def begin(http: httpx2.AsyncClient, call: dict[str, Any] = CALL, headers: dict[str, str] | None = None) -> None:
    """Call a program that goes on for ever, and leave the connection once it has begun."""
    async with http.stream("POST", "/mcp", json=call, headers=headers) as stream:
        async for line in stream.aiter_lines():
            if "begun" in line:
                return


@pytest.mark.promise("client-gone")
async def test_a_lost_connection_leaves_the_program_and_the_end_of_the_session_ends_it(
    http: httpx2.AsyncClient, backend: FakeBackend
) -> None:
    await begin(http)
    assert (await http.post("/mcp", json=PING)).status_code == 200
    assert running(backend) == 1, "a client of this era may lose a connection and mean nothing by it"
    assert (await http.delete("/mcp")).status_code == 200
    await until(lambda: running(backend) == 0)
    assert (await http.post("/mcp", json=PING)).status_code == 404


async def test_calls_that_are_cancelled_at_any_moment_have_one_answer_each_and_leave_nothing(
    http: httpx2.AsyncClient, backend: FakeBackend
) -> None:
    rng, numbers = random.Random(7), range(10, 110)  # noqa: S311 - moments, not secrets

    async def call(number: int) -> list[int]:
        arguments = {"code": "print(1)" if number % 3 else FOREVER}
        body = {**CALL, "id": number, "params": {"name": "run_python_code", "arguments": arguments}}
        answer = await http.post("/mcp", json=body, timeout=60)
        return [json.loads(line[6:])["id"] for line in answer.text.splitlines() if line.startswith("data: {")]

    async def cancel(number: int) -> None:
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
        assert (await http.post("/mcp", json=note)).status_code == 202

    calls = []
    for number in numbers:
        calls.append(asyncio.create_task(call(number)))
        await asyncio.sleep(rng.random() / 50)
        await cancel(number)
        while number % 3 == 0 and not calls[-1].done():  # the call may have come after its cancel
            await cancel(number)
        assert (await http.post("/mcp", json=PING)).status_code == 200
    assert await asyncio.gather(*calls) == [[number] for number in numbers]
    await until(lambda: running(backend) == 0)


async def test_a_sandbox_is_its_callers_and_outlives_the_session(
    http: httpx2.AsyncClient, backend: FakeBackend
) -> None:
    await begin(http)
    assert (await http.delete("/mcp")).status_code == 200
    await until(lambda: running(backend) == 0)
    assert len(await backend.list("local")) == 1


@pytest.mark.promise("client-gone")
async def test_without_a_session_a_lost_connection_ends_the_program(
    http: httpx2.AsyncClient, backend: FakeBackend
) -> None:
    del http.headers["mcp-session-id"]
    meta = {
        "progressToken": 1,
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "new", "version": "1"},
    }
    call = {**CALL, "params": {**CALL["params"], "_meta": meta}}
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "run_python_code"}
    await begin(http, call, headers)
    await until(lambda: running(backend) == 0)
    assert len(await backend.list("local")) == 1
