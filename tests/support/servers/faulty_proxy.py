"""A way to the API server that loses answers after the write arrived, breaks watches off, and tells late and twice.

Called by the storm of claims, for gateways and operator alike. It writes a kubeconfig that leads through it.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from sandpod_gateway.backends.kubernetes import cluster as cluster_module
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings

RECENT: Final = 4  # lines of a watch that may be told again
_HOP: Final = {"host", "connection", "transfer-encoding", "content-length", "accept-encoding"}


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How often each fault happens, as a share of requests, or of events of a watch."""

    lost_requests: float = 0.0
    lost_answers: float = 0.0
    late_answers: float = 0.0
    cut_watches: float = 0.0
    repeated_events: float = 0.0
    lag: float = 0.0  # most seconds that a watch is behind, each by its own
    longest: float = 0.3  # seconds of what is late


NONE: Final = Faults()

Told = Callable[[str, str, bytes, int, str], None]
"""Hears of each write: method, path, body, the API server's status (0 where it was not asked), and the fault."""


class FaultyProxy:
    """One HTTP server on this machine, in front of the API server."""

    def __init__(self, host: str, upstream: aiohttp.ClientSession, faults: Faults, told: Told | None = None) -> None:
        self._host = host
        self._upstream = upstream
        self._faults = faults
        self._told = told or (lambda *_: None)
        self._random = random.Random()  # noqa: S311 - faults are no secret

    def _happens(self, share: float) -> bool:
        return self._random.random() < share

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on, unless a fault happens to it."""
        if request.query.get("watch"):
            return await self._watch(request)
        body = await request.read()
        writes = request.method != "GET"
        if writes and self._happens(self._faults.lost_requests):
            self._told(request.method, request.path, body, 0, "lost request")
            return _cut(request)
        async with self._open(request, body) as answer:
            payload = await answer.read()
        if writes and self._happens(self._faults.lost_answers):
            self._told(request.method, request.path, body, answer.status, "lost answer")
            return _cut(request)
        fault = ""
        if self._happens(self._faults.late_answers):
            fault = "late answer"
            await asyncio.sleep(self._random.random() * self._faults.longest)
        if writes:
            self._told(request.method, request.path, body, answer.status, fault)
        return web.Response(status=answer.status, body=payload, content_type=answer.content_type)

    def _open(self, request: web.Request, body: bytes) -> Any:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        url = f"{self._host}{request.raw_path}"
        return self._upstream.request(request.method, url, data=body or None, headers=headers)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        faults, recent, lag = self._faults, list[bytes](), self._random.random() * self._faults.lag
        async with self._open(request, b"") as answer:
            response = web.StreamResponse(status=answer.status, headers={"content-type": answer.content_type})
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):  # whoever watched has gone
                async for line in _behind(answer.content, lag):
                    if self._happens(faults.cut_watches):
                        return _cut(request)
                    await response.write(line)
                    recent = [*recent, line][-RECENT:]
                    if self._happens(faults.repeated_events):
                        # As a watch does that begins again a little before it was cut.
                        await response.write(b"".join(recent))
        return response


async def _behind(lines: AsyncIterator[bytes], lag: float) -> AsyncIterator[bytes]:
    """Yield lines in order, each so many seconds after it came."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()

    async def read() -> None:
        try:
            async for line in lines:
                waiting.put_nowait((loop.time() + lag, line))
        finally:
            waiting.put_nowait(None)

    reading = asyncio.create_task(read())
    try:
        while (found := await waiting.get()) is not None:
            due, line = found
            await asyncio.sleep(max(0.0, due - loop.time()))
            yield line
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


@asynccontextmanager
async def faulty_proxy(kubeconfig: Path, faults: Faults, told: Told | None = None) -> AsyncIterator[FaultyProxy]:
    """Run a proxy and write a kubeconfig that leads through it."""
    api = await cluster_module.Cluster.connect(KubernetesSettings(namespace="default"))
    tls = (await api.client.access()).ssl_context
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=True) as upstream:
        proxy = FaultyProxy(api.host, upstream, faults, told)
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            await asyncio.to_thread(_write_kubeconfig, kubeconfig, f"http://127.0.0.1:{port}")
            yield proxy
        finally:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await runner.cleanup()
            await api.close()


def _write_kubeconfig(path: Path, server: str) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(config), encoding="utf-8")
