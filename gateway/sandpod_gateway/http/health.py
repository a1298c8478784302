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


class Health:
    """The routes.

    Args:
        check: Asks the backend for next to nothing; raises SandpodError where that fails.
        registry: The metrics, or None where they are not served here.
        hosts: Host names that requests may be for, or None for any: kubelet and Prometheus ask by address.
    """

    def __init__(
        self, check: Callable[[], Awaitable[None]], registry: CollectorRegistry | None, *, hosts: list[str] | None
    ) -> None:
        self._check = check
        self._registry = registry
        self._hosts = hosts
        self._lock = asyncio.Lock()
        self._checked_at = -CHECK_SECONDS
        self._trouble: SandpodError | None = None

    def routes(self) -> list[Route]:
        """Return them."""
        guard = Middleware(HostOriginGuardMiddleware, allowed_hosts=self._hosts, mode="strict")
        middleware = [guard] if self._hosts is not None else []
        return [
            Route("/healthz", self._healthz, middleware=middleware),
            Route("/readyz", self._readyz, middleware=middleware),
            *([metrics_route(self._registry, middleware)] if self._registry is not None else []),
        ]

    async def _healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, _: Request) -> Response:
        trouble = await self._last_check()
        return PlainTextResponse("ready\n") if trouble is None else problem(trouble, status=503)

    async def _last_check(self) -> SandpodError | None:
        """Return what is wrong with the backend. Anybody may ask, so one check answers all for a second."""
        async with self._lock:
            if time.monotonic() - self._checked_at >= CHECK_SECONDS:
                try:
                    await self._check()
                    self._trouble = None
                except SandpodError as error:
                    self._trouble = error
                self._checked_at = time.monotonic()
            return self._trouble
