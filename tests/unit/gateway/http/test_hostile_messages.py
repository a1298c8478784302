"""Messages that hold too much, over each HTTP transport: refused before anything validates them, and nobody waits."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest
from fastmcp import Client
from mcp_types import INVALID_REQUEST

from fakes.backend import FakeBackend
from sandpod_gateway.api import messages
from sandpod_gateway.app import Gateway
from sandpod_gateway.http import limits as bounds
from sandpod_gateway.mcp.calls import CallMiddleware
from sandpod_gateway.settings import LimitSettings, Settings
from support.gateway.hostile_messages import HOSTILE, ID, call
from support.gateway.peers import ACCEPT, HEADERS, INITIALIZE, PATIENCE, PING, until
from support.gateway.server import listening

Post = Callable[[bytes], Awaitable[httpx2.Response]]


class Place:
    """A gateway that listens, and its callers."""

    def __init__(self, gateway: Gateway, http: httpx2.AsyncClient) -> None:
        self.gateway = gateway
        self.http = http

    async def session(self) -> dict[str, str]:
        answer = await self.http.post("/mcp", json=INITIALIZE)
        return {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}

    @asynccontextmanager
    async def poster(self, transport: str) -> AsyncIterator[Post]:
        """Give what posts a body as a client of that transport does."""
        kind = {"content-type": "application/json"}
        if transport == "sse":
            async with self.http.stream("GET", "/sse") as events:
                async for line in events.aiter_lines():
                    if line.startswith("data:"):
                        break
                path = line.removeprefix("data:").strip()
                yield lambda body: self.http.post(path, content=body, headers=kind)
            return
        headers = {**kind, **(HEADERS if transport == "modern" else await self.session())}
        yield lambda body: self.http.post("/mcp", content=body, headers=headers)

    def refusals(self, code: str) -> float:
        return self.gateway.metrics.registry.get_sample_value("sandpod_refusals_total", {"code": code}) or 0.0


@asynccontextmanager
async def serving(**limits: int) -> AsyncIterator[Place]:
    settings = Settings(limits=LimitSettings(**limits))
    gateway = Gateway(settings, FakeBackend())
    async with (
        listening(gateway, settings) as address,
        httpx2.AsyncClient(base_url=address, headers=ACCEPT, timeout=30) as http,
    ):
        yield Place(gateway, http)


@pytest.mark.parametrize("transport", ["modern", "legacy", "sse"])
async def test_what_holds_too_much_is_refused_with_its_id_and_no_other_session_notices(
    transport: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def reached(*_: object) -> None:
        pytest.fail("the message reached the tools")

    monkeypatch.setattr(CallMiddleware, "on_call_tool", reached)
    async with serving() as place, place.poster(transport) as post:
        other = await place.session()
        for name, (code, body) in HOSTILE.items():
            answer = await post(body)
            assert answer.status_code == 400, name
            told = answer.json()
            assert (told["id"], told["error"]["code"], told["error"]["data"]["error"]) == (
                ID,
                code,
                "invalid_argument",
            ), name
            assert len(answer.content) < 2000, name
            assert (await place.http.post("/mcp", json=PING, headers=other)).status_code == 200, name
        assert place.refusals("invalid_argument") == len(HOSTILE)
    assert [record for record in caplog.records if record.exc_info] == []


async def test_two_hundred_thousand_wrong_values_cost_no_more_memory_than_their_bytes() -> None:
    _, body = HOSTILE["a list of integers"]
    async with serving() as place, place.poster("modern") as post:
        await post(call(b'"a":1'))  # what is imported and cached at the first request
        tracemalloc.start()
        try:
            assert (await post(body)).status_code == 400
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 10 * len(body), "the client's copies are among it"


@pytest.mark.parametrize("transport", ["modern", "legacy", "sse"])
async def test_a_message_that_is_too_large_is_refused_with_its_id(transport: str) -> None:
    body = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":"' + b"a" * messages.MAX_BYTES + b'"}}'
    async with serving() as place, place.poster(transport) as post:
        answer = await post(body)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == INVALID_REQUEST


async def test_values_inside_of_strings_are_none() -> None:
    for code in ("[{1,2},[3,4]]\n" * 20_000, '"[,"\\' * 20_000, "," * 100_000):
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"arguments": {"code": code}}}
        assert messages.refusal(json.dumps(message).encode()) is None


async def test_a_text_that_looks_like_an_id_is_none() -> None:
    body = call(b'"args":[' + b",".join([b"1"] * 9000) + b'],"stdin":"{\\"id\\": 5}"').replace(
        b'"id":7', b'"x":{"id":8}'
    )
    refused = messages.refusal(body)
    assert refused is not None
    assert refused.id is None


@asynccontextmanager
async def half_sent(place: Place, count: int) -> AsyncIterator[None]:
    """Requests whose bodies do not come to their end."""

    async def half() -> AsyncIterator[bytes]:
        yield b'{"jsonrpc":'
        await asyncio.Event().wait()

    headers = {**HEADERS, "content-type": "application/json"}
    waiting = [asyncio.create_task(place.http.post("/mcp", content=half(), headers=headers)) for _ in range(count)]
    try:
        yield
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("transport", ["modern", "legacy", "sse"])
async def test_a_request_too_many_is_refused_and_one_that_ends_makes_room(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[str] = []
    enter = bounds.Requests.enter

    def counted(requests: bounds.Requests, owner: str) -> None:
        enter(requests, owner)
        entered.append(owner)

    async with serving(max_requests_per_owner=2) as place, place.poster(transport) as post:
        monkeypatch.setattr(bounds.Requests, "enter", counted)
        async with half_sent(place, 2):
            await until(lambda: len(entered) == 2)
            refused = await post(json.dumps(PING).encode())
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["data"]["error"] == "rate_limited"
            assert place.refusals("rate_limited") == 1
        async with asyncio.timeout(PATIENCE):
            while (await post(json.dumps(PING).encode())).status_code == 429:
                pass


async def test_bodies_under_way_hold_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_BODIES", 1000)
    async with serving() as place, place.poster("modern") as post:
        for _ in range(3):  # what was refused holds nothing
            answer = await post(b"x" * 1001)
            assert (answer.status_code, answer.json()["error"]["data"]["error"]) == (429, "rate_limited")
            assert (await post(b"x" * 1000)).status_code == 400


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "BODY_SECONDS", 0.01)
    async with serving() as place:
        url = place.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_call_too_many_is_refused_where_calls_outlive_their_requests() -> None:
    begun = asyncio.Event()

    async def note(*_: object) -> None:
        begun.set()

    forever = "import time\nprint('begun', flush=True)\nfor i in range(1000000):\n    time.sleep(0.01)"
    gateway = Gateway(Settings(limits=LimitSettings(max_requests_per_owner=1)), FakeBackend())
    async with gateway.running(), Client(gateway.mcp) as client:
        call = asyncio.create_task(client.call_tool("run_python_code", {"code": forever}, progress_handler=note))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        answer = await client.call_tool("list_sandboxes", {}, raise_on_error=False)
        assert answer.structured_content is not None
        assert answer.structured_content["error"] == "rate_limited"
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        async with asyncio.timeout(PATIENCE):
            while (await client.call_tool("list_sandboxes", {}, raise_on_error=False)).is_error:
                pass
