"""A server that speaks Kubernetes' side of the exec protocol, for the tests of the exec stream, and streams to it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from sandpod_gateway.backends.kubernetes.streams.exec_stream import V4, V5, ExecStream, open_exec

Handler = Callable[[web.WebSocketResponse], Awaitable[None]]

QUIET = 1000.0  # a heartbeat that no test lives to see


@asynccontextmanager
async def serving(
    handler: Handler, *, protocols: tuple[str, ...] = (V5, V4), autoping: bool = True
) -> AsyncIterator[TestServer]:
    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=protocols, autoping=autoping, max_msg_size=0)
        await socket.prepare(request)
        await handler(socket)
        return socket

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/exec", serve)
    app.router.add_get("/page", page)
    server = TestServer(app)
    await server.start_server()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def stream_of(server: TestServer, *, path: str = "/exec", heartbeat: float = QUIET) -> AsyncIterator[ExecStream]:
    target = {"url": server.make_url(path), "params": [("command", "cat")]}
    async with aiohttp.ClientSession() as http:
        stream = await open_exec(http, target, heartbeat=heartbeat)
        try:
            yield stream
        finally:
            await stream.close()


async def echo(socket: web.WebSocketResponse) -> None:
    async for message in socket:
        if message.data[:1] == b"\0":
            await socket.send_bytes(b"\1" + message.data[1:])


async def stay(socket: web.WebSocketResponse) -> None:
    """Read what comes until the other side is gone."""
    async for _ in socket:
        pass
