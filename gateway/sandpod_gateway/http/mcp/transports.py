"""MCP over HTTP: streamable HTTP at /mcp, and SSE at /sse for clients that know only that.

Both have the same keys, the same Host and Origin checks and the same bounds. A tool does not know by which one its call
came. A request's address and headers choose the transport and the toolsets, and hold the API key.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import anyio
from fastmcp import FastMCP
from fastmcp.server.http import create_sse_app
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.toolsets import TOOLS, expanded
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.audit import RefusedRequests
from sandpod_gateway.http.limits import BoundedBodies, OpenSessions, Requests, SessionLimit
from sandpod_gateway.http.mcp.peers import Peers, was_passed_on
from sandpod_gateway.http.mcp.sessions import SESSION_ID, Sessions, SseSessions
from sandpod_gateway.http.negotiation import coded, problem, refused
from sandpod_telemetry import tracing

MCP_PATH: Final = "/mcp"
SSE_PATH: Final = "/sse"
MESSAGES_PATH: Final = "/messages/"

API_KEY: Final = "api_key"  # query parameter that holds a key, where the settings allow it

# A transport and the toolsets that its address names, or a message to SSE: nobody looks at the rest of its path.
_PATH: Final = re.compile(rf"({MCP_PATH}|{SSE_PATH})(?:/(,*[A-Za-z][A-Za-z,]*))?/*|{MESSAGES_PATH}.*", re.DOTALL)
_METHODS: Final = {MCP_PATH: ("GET", "POST", "DELETE"), SSE_PATH: ("GET",), MESSAGES_PATH: ("POST",)}


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
        refusals: RefusedRequests,
        peers: Peers,
        ending: asyncio.Event,
    ) -> None:
        self._peers = peers
        self._ending = ending
        self._refusals = refusals
        self._allow_query_key = allow_query_key
        guards: dict[str, Any] = {"host_origin_protection": True, "allowed_hosts": hosts, "allowed_origins": origins}
        self._streamable = mcp.http_app(
            path=MCP_PATH,
            middleware=[
                Middleware(BoundedBodies, requests=requests, negotiates=True),
                Middleware(Sessions, peers=peers),
                Middleware(SessionLimit, sessions=sessions),
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
                Middleware(BoundedBodies, requests=requests),
                Middleware(SseSessions, peers=peers),
                Middleware(SessionLimit, sessions=sessions, always=True),
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
        served = _resolved(scope, allow_query_key=self._allow_query_key)
        if isinstance(served, Response):
            await served(scope, receive, self._refusals.seen(scope, send))
            return
        with tracing.following(served["headers"]):
            await self._serve(scope, served, receive, send)

    async def _serve(self, scope: Scope, served: Scope, receive: Receive, send: Send) -> None:
        if not was_passed_on(scope):  # else the other gateway does so
            send = self._refusals.seen(served, send)
        if served["path"] == MCP_PATH:
            streamable = (
                self._streamable if scope["method"] != "GET" else partial(standing, self._streamable, self._ending)
            )
            await coded(streamable, served, receive, send)
        elif served["path"] == SSE_PATH:  # a session
            sse = partial(standing, self._sse, self._ending)
            await coded(sse, served, receive, self._with_query(scope, served, send))
        else:
            # A message to a session that ends at this moment was accepted and is dropped, as any later one would be.
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await coded(self._sse, served, receive, send)

    def _with_query(self, scope: Scope, served: Scope, send: Send) -> Send:
        """Return a `send` for an SSE connection: its messages' address has its request's query, and its gateway."""
        kept = [(name, value) for name, value in _query(served) if name == TOOLS]
        kept += [(name, value) for name, value in _query(scope) if name == API_KEY and self._allow_query_key]
        known = f"{SESSION_ID}="
        waiting = [f"{urlencode(kept)}{'&' if kept else ''}{known}{self._peers.prefix}".encode("latin-1")]

        async def send_on(message: Message) -> None:
            if waiting and (body := message.get("body")):  # the first event says where messages go
                message = {**message, "body": body.replace(known.encode(), waiting.pop(), 1)}
            await send(message)

        return send_on


def until_ending(ending: asyncio.Event, receive: Receive) -> Receive:
    """Return a `receive` for which the client leaves when the server ends."""

    async def receive_on() -> Message:
        end, message = asyncio.ensure_future(ending.wait()), asyncio.ensure_future(receive())
        try:
            await asyncio.wait((end, message), return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else {"type": "http.disconnect"}
        finally:
            end.cancel()
            message.cancel()

    return receive_on


async def standing(app: ASGIApp, ending: asyncio.Event, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request whose answer has no end of its own: it ends with the server, as if the client had left."""
    last: Message = {}

    async def send_on(message: Message) -> None:
        nonlocal last
        last = message
        await send(message)

    await app(scope, until_ending(ending, receive), send_on)
    if ending.is_set() and (last.get("more_body") or last.get("type") == "http.response.start"):
        await send({"type": "http.response.body", "body": b""})


def _resolved(scope: Scope, *, allow_query_key: bool) -> Scope | Response:
    """Return a request as the transports take it, or the refusal of one that none of them takes.

    A slash at the end is taken off: a redirect would cost some clients their key. `/mcp/core` is `/mcp?tools=core`.
    The key moves from where it stands (the query only where that is allowed) to the Authorization header, and out of
    the query, which may be logged.
    """
    match = _PATH.fullmatch(scope["path"])
    if match is None:
        step = "Connect to /mcp, or to /sse for SSE."
        return problem(SandpodError(ErrorCode.NOT_FOUND, "Nothing is served at this path.", next_step=step))
    path, names = match[1] or MESSAGES_PATH, match[2]
    if scope["method"] not in (methods := _METHODS[path]):
        message, step = f"{path} takes {' or '.join(methods)}.", "Use one of these methods."
        error = SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
        return refused(error, status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": ", ".join(methods)})
    query = _query(scope) + ([(TOOLS, names)] if names is not None else [])
    if (fault := toolset_fault(value for name, value in query if name == TOOLS)) is not None:
        return refused(fault)
    key = next((value for name, value in query if name == API_KEY), None) if allow_query_key else None
    kept = [(name, value) for name, value in query if name != API_KEY]
    path = match[1] or scope["path"]
    return {
        **scope,
        "path": path,
        "raw_path": path.encode(),
        "query_string": urlencode(kept).encode("latin-1"),
        "headers": with_key(scope["headers"], key),
    }


def toolset_fault(texts: Iterable[str]) -> SandpodError | None:
    """Return the refusal of a request whose query names toolsets that do not exist."""
    try:
        expanded(each for text in texts for each in text.split(","))
    except ValueError as error:
        step = "sandpod://capabilities lists the toolsets."
        return SandpodError(ErrorCode.INVALID_ARGUMENT, str(error), next_step=step)
    return None


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)


def with_key(raw: list[tuple[bytes, bytes]], from_query: str | None = None) -> list[tuple[bytes, bytes]]:
    """Return a request's headers with its key where all of them are looked for: as a bearer token."""
    headers = MutableHeaders(raw=list(raw))
    key = headers.get("x-api-key") or from_query
    if key is not None and not headers.get("authorization", "").lower().startswith("bearer "):
        headers["authorization"] = f"Bearer {key.encode('latin-1', 'replace').decode('latin-1')}"
    return headers.raw
