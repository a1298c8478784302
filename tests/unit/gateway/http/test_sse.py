"""The SSE transport, for clients that know no other: by FastMCP's own client, over real connections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import SSETransport

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.fake_gateway import keys_file
from support.gateway.peers import PATIENCE, until
from support.gateway.server import listening

FOREVER = "import time\nprint('begun', flush=True)\nfor i in range(1000000):\n    time.sleep(0.01)"
SLOWLY = "import time\nfor i in range(5):\n    print(i)\n    time.sleep(0.06)"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


class Server:
    """A gateway over a fake backend, and where it listens."""

    def __init__(self, gateway: Gateway, backend: FakeBackend, address: str) -> None:
        self.gateway = gateway
        self.backend = backend
        self.address = address

    def client(self, key: str | None = None) -> Client[Any]:
        headers = {"authorization": f"Bearer {key}"} if key else None
        return Client(SSETransport(f"{self.address}/sse", headers=headers))

    def running(self) -> int:
        return sum(len(cell.runner.runs) for cell in self.backend.launcher.cells)

    def cancelled(self) -> float:
        labels = {"language": "python", "outcome": "cancelled"}
        return self.gateway.metrics.registry.get_sample_value("sandpod_runs_total", labels) or 0.0


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Server]:
    backend = FakeBackend()
    gateway = Gateway(settings, backend)
    async with listening(gateway, settings) as address:
        yield Server(gateway, backend, address)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(Settings()) as started:
        yield started


@asynccontextmanager
async def session(server: Server, **headers: str) -> AsyncIterator[str]:
    """Open a raw SSE connection; gives the address that its messages are posted to."""
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        http.stream("GET", f"{server.address}/sse") as stream,
    ):
        assert stream.status_code == 200
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                yield server.address + line.removeprefix("data: ")
                return


async def test_a_program_runs_and_its_output_is_streamed_while_it_does(server: Server) -> None:
    got: list[str | None] = []

    async def note(_progress: float, _total: float | None, message: str | None) -> None:
        got.append(message)

    async with server.client() as client:
        answer = await client.call_tool("run_python_code", {"code": SLOWLY}, progress_handler=note)
    assert answer.structured_content is not None
    assert answer.structured_content["stdout"] == "0\n1\n2\n3\n4\n" == "".join(message or "" for message in got)
    assert len(got) >= 3


async def test_links_made_over_it_lead_to_this_server(server: Server) -> None:
    async with server.client() as client, httpx2.AsyncClient() as http:
        await client.call_tool("write_file", {"path": "a.txt", "text": "linked"})
        link = await client.call_tool("create_link", {"path": "a.txt"})
        assert link.structured_content is not None
        assert (await http.get(link.structured_content["url"])).text == "linked"


async def test_cancelling_a_call_ends_the_program_and_the_session_goes_on(server: Server) -> None:
    async with server.client() as client:
        task = asyncio.create_task(client.call_tool("run_python_code", {"code": FOREVER}))
        await until(lambda: server.running() == 1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await until(lambda: server.running() == 0 and server.cancelled() == 1)
        answer = await client.call_tool("run_python_code", {"code": "print(2)"})
        assert answer.structured_content is not None
        assert answer.structured_content["stdout"] == "2\n"


async def test_a_connection_that_is_cut_ends_the_program(server: Server) -> None:
    call = {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": "run_python_code", "arguments": {"code": FOREVER}},
    }
    start = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
    async with httpx2.AsyncClient() as http:
        async with session(server) as url:
            for message in (
                {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": start},
                {"jsonrpc": "2.0", "method": "notifications/initialized"},
                call,
            ):
                assert (await http.post(url, json=message)).status_code == 202
            await until(lambda: server.running() == 1)
        await until(lambda: server.running() == 0 and server.cancelled() == 1)
        async with asyncio.timeout(PATIENCE):
            while (await http.post(url, json=PING)).status_code != 404:
                pass


async def test_without_a_key_it_answers_401_and_with_one_it_serves_that_caller(tmp_path: Path) -> None:
    path, [alice, bob] = keys_file(tmp_path, "alice", "bob")
    async with serving(Settings(auth=AuthSettings(keys_file=path))) as server:
        async with httpx2.AsyncClient() as http:
            for headers in ({}, {"authorization": "Bearer wrong"}):
                assert (await http.get(f"{server.address}/sse", headers=headers)).status_code == 401
                posted = await http.post(f"{server.address}/messages/?session_id=0", json=PING, headers=headers)
                assert posted.status_code == 401
            async with session(server, authorization=f"Bearer {alice}") as url:
                stolen = await http.post(url, json=PING, headers={"authorization": f"Bearer {bob}"})
                assert stolen.status_code == 404, "someone else's session can't be told from none"
                assert (await http.post(url, json=PING)).status_code == 401
        assert server.backend.launcher.cells == []
        async with server.client(alice) as client:
            await client.call_tool("run_python_code", {"code": "print(1)"})
        assert len(await server.backend.list("user:alice")) == 1


async def test_another_web_page_can_not_use_it(server: Server) -> None:
    async with httpx2.AsyncClient() as http, session(server) as url:
        for method, target in (("GET", f"{server.address}/sse"), ("POST", url)):
            foreign = await http.request(method, target, json=PING, headers={"origin": "https://evil.example"})
            rebound = await http.request(method, target, json=PING, headers={"host": "evil.example:8000"})
            assert (foreign.status_code, rebound.status_code) == (403, 421)


async def test_a_body_that_is_too_large_or_broken_is_a_client_error(server: Server) -> None:
    async with httpx2.AsyncClient() as http:
        for body, status in ((b"x" * (4 * 2**20 + 1), 413), (b"{", 400), (b"\xff\xfe", 400), (b"[]", 400)):
            async with session(server) as url:
                assert (await http.post(url, content=body)).status_code == status


async def test_both_spellings_answer_without_a_redirect(server: Server) -> None:
    async with httpx2.AsyncClient() as http, http.stream("GET", f"{server.address}/sse/") as stream:
        assert stream.status_code == 200
