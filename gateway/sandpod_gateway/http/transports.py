"""MCP over HTTP: streamable HTTP at /mcp, and SSE at /sse for clients that know only that.

Both have the same keys, the same Host and Origin checks and the same bounds. A tool does not know by which one its call
came.
"""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from fastmcp import FastMCP
from fastmcp.server.http import create_sse_app
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandpod_gateway.http.addresses import MCP_PATH, MESSAGES_PATH, SSE_PATH, keeping, resolved
from sandpod_gateway.http.bodies import BoundedBodies, Requests
from sandpod_gateway.http.negotiation import negotiated
from sandpod_gateway.http.refusals import worded
from sandpod_gateway.http.session_limits import OpenSessions, SessionLimit


class Transports:
    """An ASGI app that serves one MCP server by both; see `Settings` for what its arguments mean."""

    def __init__(
        self,
        mcp: FastMCP[Any],
        *,
        hosts: list[str],
        origins: list[str] | None,
        sessions: OpenSessions,
        requests: Requests,
        allow_query_key: bool,
    ) -> None:
        self._allow_query_key = allow_query_key
        guards: dict[str, Any] = {"host_origin_protection": True, "allowed_hosts": hosts, "allowed_origins": origins}
        self._streamable = mcp.http_app(
            path=MCP_PATH,
            middleware=[
                Middleware(BoundedBodies, requests=requests, path=MCP_PATH),
                Middleware(negotiated),
                Middleware(SessionLimit, sessions=sessions, always=False, path=MCP_PATH),
            ],
            session_idle_timeout=sessions.idle,
            **guards,
        )
        self._sse = create_sse_app(
            mcp,
            MESSAGES_PATH,
            SSE_PATH,
            mcp.auth,
            middleware=[
                Middleware(BoundedBodies, requests=requests, path=MESSAGES_PATH),
                Middleware(SessionLimit, sessions=sessions, always=True, path=SSE_PATH),
            ],
            **guards,
        )

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Start and end both: Starlette runs only the outermost app's lifespan."""
        async with self._streamable.lifespan(self._streamable), self._sse.lifespan(self._sse):
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        served = resolved(scope, allow_query_key=self._allow_query_key)
        if isinstance(served, Response):
            await served(scope, receive, send)
            return
        if served["path"] == MCP_PATH:
            await worded(self._streamable, served, receive, send)
        elif served["path"] == SSE_PATH:  # an endless answer, and a session
            send = keeping(scope, served, send, allow_query_key=self._allow_query_key)
            await worded(self._sse, served, receive, send)
        else:
            # A message to a session that ends at this moment was accepted and is dropped, as any later one would be.
            with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await worded(self._sse, served, receive, send)
