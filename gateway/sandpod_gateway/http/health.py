"""What probes and scrapers ask for without a key: /healthz, /readyz and /metrics."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fastmcp.server.http import HostOriginGuardMiddleware
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.refusals import problem

CHECK_SECONDS: Final = 1.0  # that one look at the backend answers for; probes ask every few seconds


def metrics_route(registry: CollectorRegistry, middleware: Sequence[Middleware] = ()) -> Route:
    """Return the route of Prometheus metrics."""

    async def answer(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Route("/metrics", answer, middleware=middleware)


def health_routes(
    check: Callable[[], Awaitable[None]], registry: CollectorRegistry | None, *, hosts: list[str] | None
) -> list[Route]:
    """Return the routes, with that of metrics where there is a registry.

    `check` asks the backend for next to nothing, and raises SandpodError where that fails. Requests may be for those
    hosts, or for any: kubelet and Prometheus ask by address.
    """
    lock, checked_at = asyncio.Lock(), -CHECK_SECONDS
    trouble: SandpodError | None = None

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        nonlocal checked_at, trouble
        async with lock:  # anybody may ask, so one check answers all for a second
            if time.monotonic() - checked_at >= CHECK_SECONDS:
                try:
                    await check()
                    trouble = None
                except SandpodError as error:
                    trouble = error
                checked_at = time.monotonic()
            return PlainTextResponse("ready\n") if trouble is None else problem(trouble, status=503)

    guard = [] if hosts is None else [Middleware(HostOriginGuardMiddleware, allowed_hosts=hosts, mode="strict")]
    routes = [Route("/healthz", healthz, middleware=guard), Route("/readyz", readyz, middleware=guard)]
    return routes if registry is None else [*routes, metrics_route(registry, guard)]
