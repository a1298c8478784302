"""Counts and times every request over HTTP, by the way in that its path leads to."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.http.mcp.peers import was_passed_on
from sandpod_gateway.metrics import UNKNOWN, Face, Metrics, face

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_STATUSES: Final = range(100, 600)


@dataclass(eq=False)
class MeasuredRequests:
    """Passes requests on; `faces` are the ways in by the first part of a path."""

    app: ASGIApp
    metrics: Metrics
    faces: Mapping[str, Face]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        way = self._face(scope["path"])
        with _coming_by(way):
            if scope["type"] == "websocket" or was_passed_on(scope):  # the other gateway counts its answer
                await self.app(scope, receive, send)
            else:
                await self._measure(way, scope, receive, send)

    async def _measure(self, way: Face, scope: Scope, receive: Receive, send: Send) -> None:
        start, status = time.perf_counter(), ""

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"]) if message["status"] in _STATUSES else UNKNOWN
            await send(message)

        try:
            with self.metrics.http_active.labels(way).track_inprogress():
                await self.app(scope, receive, send_on)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else UNKNOWN
            self.metrics.http_seconds.labels(way, method, status).observe(time.perf_counter() - start)

    def _face(self, path: str) -> Face:
        parts = path.split("/", 3)
        first = parts[1] if len(parts) > 1 else ""
        return self.faces.get(f"{first}/{parts[2]}" if first == "api" and len(parts) > 2 else first, "other")  # noqa: PLR2004


@contextmanager
def _coming_by(way: Face) -> Iterator[None]:
    token = face.set(way)
    try:
        yield
    finally:
        face.reset(token)
