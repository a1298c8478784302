"""A server that was asked to end lets its clients go before it does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.cli import serve
from sandpod_gateway.http.connections import BoundedConnection
from sandpod_gateway.settings import Settings, ShutdownSettings
from support.gateway.peers import until


@asynccontextmanager
async def serving(
    server: serve._Server, gateway: Gateway
) -> AsyncIterator[tuple[httpx2.AsyncClient, asyncio.Task[None]]]:
    with serve._listen("127.0.0.1", 0, flag="--port") as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with gateway.running(), httpx2.AsyncClient(base_url=address) as client:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("uvicorn.Server.capture_signals", lambda _: contextlib.nullcontext())
                task = asyncio.create_task(server.serve(sockets=[listener]))
                await until(lambda: server.started or task.done())
                try:
                    yield client, task
                finally:
                    server.force_exit = server.should_exit = True
                    await task


@pytest.mark.promise("rolling-update")
async def test_a_server_that_drains_answers_everybody_and_lets_each_connection_end_with_its_answer() -> None:
    settings = Settings(shutdown=ShutdownSettings(drain=3600, calls=7))
    gateway = Gateway(settings, FakeBackend())
    server = serve._uvicorn(gateway, settings, None)
    assert server.config.timeout_graceful_shutdown == 7
    async with serving(server, gateway) as (client, task):
        assert "connection" not in (await client.get("/healthz")).headers
        server.should_exit = True
        await until(lambda: server._asked is not None)
        for _ in range(2):  # over the connection that was idle, and over another
            answer = await client.get("/healthz")
            assert (answer.status_code, answer.headers["connection"]) == (HTTPStatus.OK, "close")
        assert not server.server_state.connections
        assert not task.done()
        server.drain = 0
        await asyncio.wait_for(asyncio.shield(task), 10)


@pytest.mark.promise("rolling-update")
@pytest.mark.parametrize(
    ("asked", "called", "left"),
    [
        pytest.param(10.0, 99.0, 6, id="no call since it was asked"),
        pytest.param(10.0, 5.5, None, id="a call a moment ago"),
        pytest.param(12.9, 0.1, None, id="calls that go on and on"),
        pytest.param(13.1, 0.1, 3, id="calls that go on for too long"),
        pytest.param(12.0, 10.5, 5, id="no call for long enough"),
    ],
)
async def test_a_server_goes_on_while_calls_come_and_takes_that_from_the_time_of_those_in_progress(
    asked: float, called: float, left: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(shutdown=ShutdownSettings(drain=10, calls=6))
    server = serve._uvicorn(Gateway(settings, FakeBackend()), settings, None)
    server.config.load()
    server.should_exit = True
    assert not await server.on_tick(1)
    now = asyncio.get_running_loop().time()
    server._asked = now - asked
    monkeypatch.setattr(server.config.http_protocol_class, "last_call", now - called)
    assert await server.on_tick(2) is (left is not None)
    assert server.config.timeout_graceful_shutdown == (left or 6)


@pytest.mark.promise("rolling-update")
async def test_request_that_comes_as_its_connection_is_closed_has_its_answer() -> None:
    gateway = Gateway(Settings(), FakeBackend())
    server = serve._uvicorn(gateway, Settings(), None)
    async with serving(server, gateway) as (client, task):
        host, port = client.base_url.host, client.base_url.port
        reader, writer = await asyncio.open_connection(host, port)
        request = f"GET /healthz HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
        with contextlib.closing(writer):
            writer.write(request)
            assert await reader.readuntil(b"ok\n")
            [connection] = server.server_state.connections
            assert isinstance(connection, BoundedConnection)
            await until(lambda: not connection._serving())
            # Nothing in between reads what the kernel has of it.
            writer.get_extra_info("socket")._sock.sendall(request)
            for each in list(server.server_state.connections):
                each.shutdown()
            assert (await asyncio.wait_for(reader.read(), 10)).endswith(b"ok\n")
        assert not task.done()


async def test_a_server_ends_at_once_where_nothing_else_is_set() -> None:
    gateway = Gateway(Settings(), FakeBackend())
    server = serve._uvicorn(gateway, Settings(), None)
    async with serving(server, gateway) as (_, task):
        server.should_exit = True
        await asyncio.wait_for(asyncio.shield(task), 10)
        assert server._asked is None


@pytest.mark.promise("rolling-update")
async def test_request_that_follows_an_answer_which_ends_after_the_server_stopped_to_listen_has_its_answer() -> None:
    """As of a proxy that keeps the connection: the first answer began before anybody was told to go."""
    settings = Settings(shutdown=ShutdownSettings(drain=3600, calls=3600))
    gateway, going_on = Gateway(settings, FakeBackend()), asyncio.Event()
    server = serve._uvicorn(gateway, settings, None)

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/slow":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            await going_on.wait()
            await send({"type": "http.response.body", "body": b"done"})
        else:
            await app(scope, receive, send)

    app: Any = server.config.app
    served: Any = slow
    server.config.app = served
    async with serving(server, gateway) as (client, task):
        host, port = client.base_url.host, client.base_url.port
        reader, writer = await asyncio.open_connection(host, port)
        with contextlib.closing(writer):
            writer.write(f"GET /slow HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            assert b"connection: close" not in await reader.readuntil(b"begun")
            server.should_exit = True
            await until(lambda: server._asked is not None)
            server.drain = 0
            await until(lambda: not server.servers[0].is_serving())
            going_on.set()
            await reader.readuntil(b"0\r\n\r\n")
            writer.write(f"GET /healthz HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            answer = await asyncio.wait_for(reader.read(), 10)
            assert b"connection: close" in answer
            assert answer.endswith(b"ok\n")
        await asyncio.wait_for(asyncio.shield(task), 10)


@pytest.mark.parametrize("looks", [3, None])
async def test_a_server_lets_installations_end_in_the_time_that_calls_have(
    monkeypatch: pytest.MonkeyPatch, looks: int | None
) -> None:
    settings = Settings(backend="kubernetes", shutdown=ShutdownSettings(calls=1 if looks is None else 3600))
    gateway = Gateway(settings, FakeBackend())
    waits: list[float] = []

    async def finish(seconds: float) -> bool:
        waits.append(seconds)
        await asyncio.sleep(seconds if looks is None else 0)
        return len(waits) == looks

    monkeypatch.setattr(gateway, "finish", finish)
    server = serve._uvicorn(gateway, settings, None)
    async with serving(server, gateway) as (_, task):
        server.should_exit = True
        await asyncio.wait_for(asyncio.shield(task), 60)
    if looks is None:
        assert 0 < sum(waits) <= 1
    else:
        assert len(waits) == looks
    # The sandboxes of a local server end with it.
    assert serve._uvicorn(gateway, Settings(backend="local"), None).finish is None
