"""What probes and scrapers ask for without a key: /healthz, /readyz and /metrics."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
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


@dataclass(eq=False)
class Health:
    """The routes."""

    check: Callable[[], Awaitable[None]]  # asks the backend for next to nothing; raises SandpodError where that fails
    registry: CollectorRegistry | None  # the metrics, or None where they are not served here
    hosts: list[str] | None  # that requests may be for, or None for any: kubelet and Prometheus ask by address
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _checked_at: float = field(default=-CHECK_SECONDS, init=False)
    _trouble: SandpodError | None = field(default=None, init=False)

    def routes(self) -> list[Route]:
        """Return them."""
        guard = Middleware(HostOriginGuardMiddleware, allowed_hosts=self.hosts, mode="strict")
        middleware = [guard] if self.hosts is not None else []
        return [
            Route("/healthz", self._healthz, middleware=middleware),
            Route("/readyz", self._readyz, middleware=middleware),
            *([metrics_route(self.registry, middleware)] if self.registry is not None else []),
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
                    await self.check()
                    self._trouble = None
                except SandpodError as error:
                    self._trouble = error
                self._checked_at = time.monotonic()
            return self._trouble
