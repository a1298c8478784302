"""Refused credentials are answered more and more slowly; valid ones never are."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from starlette.types import Message, Receive, Scope, Send

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.http import attempts
from sandpod_gateway.http.attempts import FIRST, FREE, LONGEST, MAX_WAITING, MAX_WAITING_OF_ONE, Attempts
from sandpod_gateway.http.mcp.peers import mark_passed_on
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.settings import Settings
from support.gateway.peers import PATIENCE, until

REFUSED = "sandpod_refused_credentials_total"


async def answer_with(scope: Scope, _receive: Receive, send: Send) -> None:
    """An app that answers with the status in the scope."""
    await send({"type": "http.response.start", "status": scope["status"], "headers": []})
    await send({"type": "http.response.body", "body": b""})


class Door:
    """Sends answers through `Attempts`, and records for how long each was held instead of waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.metrics = Metrics()
        self.attempts = Attempts(answer_with, self.metrics)
        self.pauses: list[float] = []
        monkeypatch.setattr(attempts, "asyncio", SimpleNamespace(sleep=self._sleep))

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def answer(self, status: int, address: str = "192.0.2.1", key: str | None = None, **more: Any) -> float:
        """Send an answer; return for how long it was held."""
        self.pauses.clear()
        assert "connection" not in await ask(self.attempts, status, address, key, **more)
        return sum(self.pauses)


async def ask(
    app: Attempts, status: int, address: str = "192.0.2.1", key: str | None = None, **more: Any
) -> dict[str, str]:
    """Send a request, and return the headers of its answer."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    scope = {"type": "http", "client": (address, 1), "headers": headers, "path": "/mcp", "query_string": b""}
    await app({**scope, "status": status, **more}, no_body, send)
    assert [each["type"] for each in sent] == ["http.response.start", "http.response.body"]
    return {name.decode(): value.decode() for name, value in sent[0]["headers"]}


async def no_body() -> Message:
    return {"type": "http.request", "body": b""}


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    return Door(monkeypatch)


@pytest.mark.promise("attempts")
async def test_refusals_of_an_address_wait_longer_and_longer_up_to_a_bound(door: Door) -> None:
    pauses = [await door.answer(401, key=str(number)) for number in range(FREE + 12)]
    assert pauses[:FREE] == [0.0] * FREE
    assert pauses[FREE : FREE + 3] == [FIRST, 2 * FIRST, 4 * FIRST]
    assert pauses[-1] == LONGEST
    assert door.metrics.registry.get_sample_value(REFUSED) == FREE + 12


@pytest.mark.promise("attempts")
async def test_valid_credentials_of_the_same_address_are_not_held_up(door: Door) -> None:
    for _ in range(FREE + 5):
        await door.answer(401)
    assert await door.answer(200) == 0.0
    assert await door.answer(202, key="right") == 0.0


@pytest.mark.promise("attempts")
@pytest.mark.parametrize(
    "stands",
    [
        {"key": "revoked"},
        {"headers": [(b"x-api-key", b"revoked")]},
        {"query_string": b"tools=core&api_key=revoked"},
        {"query_string": b"token=revoked", "path": "/files/sbx-a/a.txt"},
    ],
)
async def test_credential_is_known_again_from_other_addresses(door: Door, stands: dict[str, Any]) -> None:
    for number in range(FREE):
        assert await door.answer(401, f"192.0.2.{number}", **stands) == 0.0
    assert await door.answer(401, "198.51.100.7", **stands) == FIRST
    assert await door.answer(401, "198.51.100.8", "another") == 0.0
    assert await door.answer(401, "198.51.100.9", query_string=b"tools=core") == 0.0, "it has none"


async def test_addresses_of_one_ipv6_network_count_as_one(door: Door) -> None:
    for number in range(FREE):
        await door.answer(401, f"2001:db8::{number:x}")
    assert await door.answer(401, "2001:db8::ffff") == FIRST
    assert await door.answer(401, "2001:db8:0:1::1") == 0.0


async def test_caller_without_an_address_is_counted_too(door: Door) -> None:
    for _ in range(FREE):
        await door.answer(401, "")
    assert await door.answer(401, "") == FIRST


@pytest.mark.promise("attempts")
async def test_wrong_links_count_and_what_else_is_forbidden_does_not(door: Door) -> None:
    for path in ("/files/sbx-a/a.txt", "/archives/sbx-a.zip") * (FREE // 2):
        assert await door.answer(403, path=path) == 0.0
    assert await door.answer(403, path="/mcp") == 0.0
    assert await door.answer(403, path="/files/sbx-a/a.txt") == FIRST


async def test_request_that_another_gateway_passed_on_is_counted_there(door: Door) -> None:
    for _ in range(FREE + 5):
        scope: Scope = {}
        mark_passed_on(scope)
        assert await door.answer(401, **scope) == 0.0
    assert door.metrics.registry.get_sample_value(REFUSED) == 0


@pytest.mark.promise("attempts")
async def test_one_address_fills_its_own_places_and_gets_no_answer_sooner_than_by_a_new_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "LONGEST", PATIENCE)
    app = Attempts(answer_with, Metrics())
    for address in ("192.0.2.1", "198.51.100.1"):
        app._refused[address] = FREE + 10
    waiting = [asyncio.create_task(ask(app, 401)) for _ in range(MAX_WAITING_OF_ONE)]
    await until(lambda: app._waiting.total() == MAX_WAITING_OF_ONE)
    async with asyncio.timeout(PATIENCE):
        assert await ask(app, 401) == {"connection": "close"}
        assert await ask(app, 200) == {}, "a valid one of the same address"
    other = asyncio.create_task(ask(app, 401, "198.51.100.1"))
    await until(lambda: app._waiting.total() == MAX_WAITING_OF_ONE + 1)  # another address waits as ever
    assert not other.done()
    await ended(*waiting, other)
    assert not app._waiting


async def test_no_more_than_a_bound_of_refusals_wait_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "FREE", 0)
    monkeypatch.setattr(attempts, "FIRST", PATIENCE)
    monkeypatch.setattr(attempts, "LONGEST", PATIENCE)
    app = Attempts(answer_with, Metrics())
    waiting = [asyncio.create_task(ask(app, 401, f"10.0.{n // 250}.{n % 250}")) for n in range(MAX_WAITING)]
    await until(lambda: app._waiting.total() == MAX_WAITING)
    async with asyncio.timeout(PATIENCE):
        assert await ask(app, 401, "192.0.2.1") == {"connection": "close"}
        assert await ask(app, 200, "192.0.2.1") == {}
    await ended(*waiting)


async def ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.promise("attempts")
async def test_wrong_links_of_a_gateway_are_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(attempts, "asyncio", SimpleNamespace(sleep=sleep))
    gateway = Gateway(Settings(), FakeBackend())
    transport = httpx2.ASGITransport(app=gateway.http_app())
    async with gateway.running(), httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for number in range(FREE + 1):
            answer = await http.get(f"/files/sbx-a/a.txt?token={number}")
            assert answer.status_code == 403
    assert pauses == [FIRST]
    assert gateway.metrics.registry.get_sample_value(REFUSED) == FREE + 1
