"""What probes and scrapers ask for: /healthz, /readyz and /metrics, without a key. Composed by `app.py`."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from fastmcp.server.http import HostOriginGuardMiddleware
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sandpod_gateway.errors import SandpodError

CHECK_SECONDS: Final = 1.0  # that one look at the backend answers for; probes ask every few seconds


class Health:
    """The routes.

    Args:
        check: Asks the backend for next to nothing; raises SandpodError where that fails.
        registry: The metrics.
        hosts: Host names that requests may be for, or None for any: kubelet and Prometheus ask by address.
    """

    def __init__(
        self, check: Callable[[], Awaitable[None]], registry: CollectorRegistry, *, hosts: list[str] | None
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
        answers = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}
        return [Route(path, answer, middleware=middleware) for path, answer in answers.items()]

    async def _healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, _: Request) -> Response:
        trouble = await self._last_check()
        if trouble is not None:
            return JSONResponse(trouble.problem().model_dump(mode="json"), status_code=503)
        return PlainTextResponse("ready\n")

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def _last_check(self) -> SandpodError | None:
        """Return what is wrong with the backend; anybody may ask, so it is asked once for all who do."""
        async with self._lock:
            if time.monotonic() - self._checked_at >= CHECK_SECONDS:
                try:
                    await self._check()
                    self._trouble = None
                except SandpodError as error:
                    self._trouble = error
                self._checked_at = time.monotonic()
            return self._trouble
