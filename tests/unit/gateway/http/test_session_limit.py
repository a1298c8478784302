"""How many MCP sessions a caller may have open: who is refused, in which words, and what frees a place."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import fastmcp
import httpx2
import pytest
from mcp.shared.exceptions import MCPError

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.limits import IDLE_SECONDS, OpenSessions
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.settings import AuthSettings, LimitSettings, Settings
from support.gateway.fake_gateway import keys_file
from support.gateway.peers import ACCEPT, INITIALIZE, PATIENCE, PING
from support.gateway.server import listening


class Caller:
    """A user with a key, or without one, and the bare requests of one client or of many."""

    def __init__(self, http: httpx2.AsyncClient, gateway: Gateway, key: str | None) -> None:
        self._http = http
        self._key = {"authorization": f"Bearer {key}"} if key else {}
        self.gateway = gateway
        self.address = http.base_url

    async def post(self, body: Any, session: str | None = None) -> httpx2.Response:
        headers = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"} if session else {}
        return await self._http.post("/mcp", json=body, headers={**self._key, **headers})

    async def begin(self) -> str:
        answer = await self.post(INITIALIZE)
        assert answer.status_code == 200
        return str(answer.headers["mcp-session-id"])

    async def end(self, session: str) -> None:
        headers = {**self._key, "mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        assert (await self._http.delete("/mcp", headers=headers)).status_code == 200

    async def alive(self, session: str) -> bool:
        return (await self.post(PING, session)).status_code == 200

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[int]:
        """An SSE connection; gives its status."""
        async with self._http.stream("GET", "/sse", headers=self._key) as stream:
            yield stream.status_code

    def refusals(self, code: str) -> float:
        return self.gateway.metrics.registry.get_sample_value("sandpod_refusals_total", {"code": code}) or 0.0


@asynccontextmanager
async def callers(folder: Path, *users: str, **limits: int) -> AsyncIterator[list[Caller]]:
    """Serve with these limits; gives a caller for each user, or without any the one of a server without keys."""
    path, keys = keys_file(folder, *users)
    auth = AuthSettings(keys_file=path if users else None)
    settings = Settings(auth=auth, limits=LimitSettings(**limits))
    gateway = Gateway(settings, FakeBackend())
    async with (
        listening(gateway, settings) as address,
        httpx2.AsyncClient(base_url=address, headers=ACCEPT, timeout=30) as http,
    ):
        yield [Caller(http, gateway, key) for key in keys] or [Caller(http, gateway, None)]


async def test_a_session_too_many_is_refused_with_its_code_and_nobody_else_is(tmp_path: Path) -> None:
    async with callers(tmp_path, "alice", "bob", max_sessions_per_owner=2) as [alice, bob]:
        sessions = [await alice.begin(), await alice.begin()]
        refused = await alice.post(INITIALIZE)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
        error = refused.json()["error"]
        assert (error["data"]["error"], alice.refusals("max_sessions")) == ("max_sessions", 1)
        assert "You have 2 MCP sessions open" in error["message"]
        assert error["data"]["next"] in error["message"]
        assert await alice.alive(sessions[0])
        await bob.begin()


async def test_the_end_of_a_session_frees_its_place(tmp_path: Path) -> None:
    async with callers(tmp_path, max_sessions_per_owner=1) as [local]:
        for _ in range(3):
            session = await local.begin()
            assert (await local.post(INITIALIZE)).status_code == 429
            await local.end(session)


def test_only_a_session_that_was_idle_long_enough_frees_its_place() -> None:
    now = 0.0
    sessions = OpenSessions(per_owner=2, in_all=9, metrics=Metrics(), idle=30, clock=lambda: now)
    for name in ("idle", "busy"):
        sessions.enter("alice")
        sessions.leave("alice", name)
    with sessions.using("alice", "busy"):
        now = 29.0
        with sessions.using("bob", "idle"), pytest.raises(SandpodError):
            sessions.enter("alice")
        now = 30.0
        sessions.enter("alice")
        with pytest.raises(SandpodError):
            sessions.enter("alice")
        now = 59.0
    now = 88.0
    with pytest.raises(SandpodError):
        sessions.enter("alice")
    now = 89.0
    sessions.enter("alice")


def test_nobody_ends_the_session_of_another() -> None:
    sessions = OpenSessions(per_owner=1, in_all=9, metrics=Metrics())
    sessions.enter("alice")
    sessions.leave("alice", "session")
    sessions.ended("bob", "session")
    with pytest.raises(SandpodError):
        sessions.enter("alice")
    sessions.ended("alice", "session")
    sessions.enter("alice")


async def test_the_server_ends_idle_sessions_when_their_places_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    http_app = fastmcp.FastMCP.http_app

    def watched(self: Any, **options: Any) -> Any:
        given.update(options)
        return http_app(self, **options)

    monkeypatch.setattr(fastmcp.FastMCP, "http_app", watched)
    Gateway(Settings(), FakeBackend()).http_app()
    assert given["session_idle_timeout"] == IDLE_SECONDS


async def test_requests_that_open_nothing_take_no_place(tmp_path: Path) -> None:
    async with callers(tmp_path, "alice", max_sessions_per_owner=1) as [alice]:
        bodies: tuple[Any, ...] = (PING, [], {"jsonrpc": "2.0", "method": "notifications/initialized"})
        for body in bodies:
            assert (await alice.post(body)).status_code >= 400
        stranger = Caller(alice._http, alice.gateway, "wrong")
        assert [(await stranger.post(INITIALIZE)).status_code for _ in range(3)] == [401] * 3
        session = await alice.begin()
        assert [await alice.alive(session) for _ in range(3)] == [True] * 3


async def test_a_session_that_was_opened_badly_has_a_place_too(tmp_path: Path) -> None:
    bad = {**INITIALIZE, "params": {"protocolVersion": 7}}
    async with callers(tmp_path, max_sessions_per_owner=2) as [local]:
        answers = [await local.post(bad) for _ in range(2)]
        opened = sum("mcp-session-id" in answer.headers and answer.is_success for answer in answers)
        assert len({answer.status_code for answer in answers}) == 1
        assert [(await local.post(INITIALIZE)).is_success for _ in range(2)].count(True) == 2 - opened


async def test_sessions_that_are_opened_at_the_same_moment_do_not_pass_the_limit(tmp_path: Path) -> None:
    async with callers(tmp_path, max_sessions_per_owner=5) as [local]:
        answers = await asyncio.gather(*(local.post(INITIALIZE) for _ in range(20)))
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) <= 5
        while (await local.post(INITIALIZE)).status_code == 200:
            statuses.append(200)
        assert statuses.count(200) == 5


async def test_both_transports_share_the_places(tmp_path: Path) -> None:
    async with callers(tmp_path, "alice", "bob", max_sessions_per_owner=2) as [alice, bob], AsyncExitStack() as stack:
        await alice.begin()
        assert await stack.enter_async_context(alice.connected()) == 200
        async with alice.connected() as status, bob.connected() as other:
            assert (status, other) == (429, 200)
        assert (await alice.post(INITIALIZE)).status_code == 429
        await stack.aclose()
        async with asyncio.timeout(PATIENCE):
            while (await alice.post(INITIALIZE)).status_code != 200:
                pass


async def test_a_full_server_says_so_to_everybody_and_keeps_its_sessions(tmp_path: Path) -> None:
    async with callers(tmp_path, "alice", "bob", max_sessions=2) as [alice, bob]:
        first, _ = await alice.begin(), await alice.begin()
        refused = await bob.post(INITIALIZE)
        assert (refused.status_code, refused.json()["error"]["data"]["error"]) == (503, "backend_unavailable")
        assert "2 MCP sessions are open" in refused.json()["error"]["message"]
        assert await alice.alive(first)
        await alice.end(first)
        await bob.begin()


async def test_a_client_that_is_refused_can_read_why(tmp_path: Path) -> None:
    async with callers(tmp_path, max_sessions_per_owner=1) as [local]:
        await local.begin()
        with pytest.raises(MCPError, match=r"You have 1 MCP sessions open.*DELETE"):
            async with fastmcp.Client(f"{local.address}/mcp", mode="legacy"):
                pass
        async with fastmcp.Client(f"{local.address}/mcp") as newer:
            assert await newer.list_tools(), "the newer era has no sessions to run out of"
