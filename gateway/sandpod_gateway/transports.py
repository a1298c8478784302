"""The ways into the MCP server over HTTP: streamable HTTP at /mcp, and SSE at /sse for clients that know only that.

Called by `app.py`. Both have the same keys, the same Host and Origin checks and the same bounds; what a tool does it
does not know which one the call came by.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import anyio
from fastmcp import FastMCP
from fastmcp.server.auth.middleware import RequireAuthMiddleware
from fastmcp.server.http import StreamableHTTPASGIApp, create_sse_app
from mcp.server.streamable_http_manager import DEFAULT_MAX_REQUEST_BODY_SIZE
from mcp_types import INVALID_REQUEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import Message, Receive, Scope, Send

from sandpod_gateway.sessions import Places, SessionLimit

MCP_PATH: Final = "/mcp"
SSE_PATH: Final = "/sse"
MESSAGES_PATH: Final = "/messages/"

_TOO_LARGE: Final = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": None,  # it stands in what was not read
        "error": {
            "code": INVALID_REQUEST,
            "message": f"The request is over {DEFAULT_MAX_REQUEST_BODY_SIZE} bytes. "
            "Call upload_file without content for a link that takes large files.",
        },
    }
).encode()


class Transports:
    """An ASGI app that serves one MCP server by both.

    Args:
        mcp: The server.
        hosts: Host names that requests may be for.
        origins: Web origins, besides the server's own, whose pages may call it; None for none.
        places: How many sessions each caller has, and may have.
    """

    def __init__(self, mcp: FastMCP[Any], *, hosts: list[str], origins: list[str] | None, places: Places) -> None:
        self._streamable = mcp.http_app(
            path=MCP_PATH,
            middleware=[Middleware(SessionLimit, places=places, always=False, path=MCP_PATH)],
            host_origin_protection=True,
            allowed_hosts=hosts,
            allowed_origins=origins,
        )
        self._sse = create_sse_app(
            mcp,
            MESSAGES_PATH,
            SSE_PATH,
            mcp.auth,
            middleware=[Middleware(SessionLimit, places=places, always=True, path=SSE_PATH)],
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
        send = _telling_of_size(send)
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


def _telling_of_size(send: Send) -> Send:
    """Return a `send` that says in the protocol's words that a request is too large.

    The bare 413 that the SDK sends reaches a model as a server's unnamed error, which it can only repeat.
    """
    replaced = False

    async def tell(message: Message) -> None:
        nonlocal replaced
        if message["type"] == "http.response.start" and message["status"] == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            replaced = True
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(_TOO_LARGE)).encode())]
            message = {**message, "headers": headers}
        elif replaced and message["type"] == "http.response.body":
            message = {"type": "http.response.body", "body": _TOO_LARGE}
        await send(message)

    return tell
