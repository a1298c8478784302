"""A server that was asked to end lets its clients go before it does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpx2
import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.cli import serve
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
        await until(lambda: server._end is not None)
        for _ in range(2):  # over the connection that was idle, and over another
            answer = await client.get("/healthz")
            assert (answer.status_code, answer.headers["connection"]) == (HTTPStatus.OK, "close")
        assert not server.server_state.connections
        assert not task.done()
        server._end = 0.0
        await asyncio.wait_for(asyncio.shield(task), 10)


async def test_a_server_ends_at_once_where_nothing_else_is_set() -> None:
    gateway = Gateway(Settings(), FakeBackend())
    server = serve._uvicorn(gateway, Settings(), None)
    async with serving(server, gateway) as (_, task):
        server.should_exit = True
        await asyncio.wait_for(asyncio.shield(task), 10)
        assert server._end is None
