"""The ways into the MCP server over HTTP: streamable HTTP at /mcp, and SSE at /sse for clients that know only that.

Called by `app.py`. Both have the same keys, the same Host and Origin checks and the same bounds; what a tool does it
does not know which one the call came by.
"""

import contextlib
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from fastmcp import FastMCP
from fastmcp.server.auth.middleware import RequireAuthMiddleware
from fastmcp.server.http import StreamableHTTPASGIApp, create_sse_app
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import Receive, Scope, Send

from sandpod_gateway.http.bodies import BoundedBodies, Requests
from sandpod_gateway.http.session_limits import Places, SessionLimit

MCP_PATH: Final = "/mcp"
SSE_PATH: Final = "/sse"
MESSAGES_PATH: Final = "/messages/"


class Transports:
    """An ASGI app that serves one MCP server by both.

    Args:
        mcp: The server.
        hosts: Host names that requests may be for.
        origins: Web origins, besides the server's own, whose pages may call it; None for none.
        places: How many sessions each caller has, and may have.
        requests: How many requests each caller has under way, and may have.
    """

    def __init__(
        self, mcp: FastMCP[Any], *, hosts: list[str], origins: list[str] | None, places: Places, requests: Requests
    ) -> None:
        self._streamable = mcp.http_app(
            path=MCP_PATH,
            middleware=[
                Middleware(BoundedBodies, requests=requests, path=MCP_PATH),
                Middleware(SessionLimit, places=places, always=False, path=MCP_PATH),
            ],
            host_origin_protection=True,
            allowed_hosts=hosts,
            allowed_origins=origins,
        )
        self._sse = create_sse_app(
            mcp,
            MESSAGES_PATH,
            SSE_PATH,
            mcp.auth,
            middleware=[
                Middleware(BoundedBodies, requests=requests, path=MESSAGES_PATH),
                Middleware(SessionLimit, places=places, always=True, path=SSE_PATH),
            ],
            host_origin_protection=True,
            allowed_hosts=hosts,
            allowed_origins=origins,
        )
        places.ask(self._live)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Start and end both: Starlette runs only the outermost app's lifespan."""
        async with self._streamable.lifespan(self._streamable), self._sse.lifespan(self._sse):
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. A slash at the end is taken off: a redirect would cost some clients their key."""
        if scope["type"] == "http" and scope["path"] in {f"{MCP_PATH}/", f"{SSE_PATH}/"}:
            path = scope["path"].rstrip("/")
            scope = {**scope, "path": path, "raw_path": path.encode()}
        if scope["path"].startswith(MESSAGES_PATH):
            # A message to a session that ends at this moment was accepted and is dropped, as any later one would be.
            with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await self._sse(scope, receive, send)
        elif scope["path"] == SSE_PATH:  # an endless answer, and a session
            await self._sse(scope, receive, send)
        else:
            await self._streamable(scope, receive, send)

    def _live(self) -> Collection[str]:
        """The ids of the sessions over streamable HTTP: what FastMCP looks at too when it ends them."""
        for route in self._streamable.routes:
            app = getattr(route, "endpoint", None)
            app = app.app if isinstance(app, RequireAuthMiddleware) else app
            if isinstance(app, StreamableHTTPASGIApp) and app.session_manager is not None:
                return app.session_manager._server_instances.keys()  # noqa: SLF001 - there is no other word of an end
        return ()
