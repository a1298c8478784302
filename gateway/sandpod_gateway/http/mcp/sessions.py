"""Sessions of MCP clients before revision 2026-07-28, at whichever gateway their requests arrive.

The SDK keeps a session in the memory of the process where it began. To its client, a session's id says which that is,
and requests that arrive elsewhere are passed on to it. If that process is gone, a gateway that is there opens the
session again, by the handshake that its client once did: the client goes on, and sees none of it.
"""

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode
from weakref import WeakValueDictionary

from cachetools import LRUCache
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import DEFAULT_MAX_SESSIONS
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import DEFAULT_NEGOTIATED_VERSION
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.auth.current import owner_in
from sandpod_gateway.http.limits import STATEFUL, replayed
from sandpod_gateway.http.mcp.peers import Peers, was_passed_on

SESSION_ID: Final = "session_id"  # query parameter of a message to a session over SSE

# The gateway where a session began, the process there, and what that calls it.
_ID: Final = re.compile(r"([0-9a-f]{8})([0-9a-f]{8})-([0-9a-f]{32})", re.ASCII)


@dataclass(eq=False)
class _Anywhere:
    app: ASGIApp  # has the sessions that are here
    peers: Peers  # the other gateways

    async def _here(self, match: re.Match[str], scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Have the gateway answer that has a session; if it is this one, return what the request is received by."""
        sends = scope["method"] == "POST"
        body = await Request(scope, receive).body() if sends else b""  # in one piece, and bounded
        while not was_passed_on(scope) and (at := self.peers.home(match[0], match[1])) != self.peers.address:
            if await self.peers.pass_on(at, body, scope, receive, send):
                return None
        return replayed(body, receive) if sends else receive


@dataclass(eq=False)
class Sessions(_Anywhere):
    """Sessions over streamable HTTP."""

    # By owner and id, what a session is called here that was opened again; also once it has ended.
    _again: LRUCache[tuple[str, str], str] = field(default_factory=lambda: LRUCache(DEFAULT_MAX_SESSIONS), init=False)
    _opening: WeakValueDictionary[tuple[str, str], asyncio.Lock] = field(
        default_factory=WeakValueDictionary, init=False
    )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        owner = owner_in(scope)
        headers = Headers(scope=scope)
        if owner is None or headers.get(MCP_PROTOCOL_VERSION_HEADER) not in STATEFUL:
            await self.app(scope, receive, send)
            return
        match = _ID.fullmatch(given := headers.get(MCP_SESSION_ID_HEADER, ""))
        if match is None:  # it may open a session, or names none
            await self.app(scope, receive, self._named(send))
            return
        here = await self._here(match, scope, receive, send)
        if here is None:
            return
        session: str | None = match[3]
        if not given.startswith(self.peers.prefix):
            if scope["method"] == "DELETE" and (owner, given) not in self._again:
                self._again[owner, given] = match[3]  # which is no session here
                await Response()(scope, here, send)
                return
            session = self._again.get((owner, given)) or await self._reopen((owner, given), scope, send)
        if session is not None:
            headers = MutableHeaders(raw=list(scope["headers"]))
            headers[MCP_SESSION_ID_HEADER] = session
            await self.app({**scope, "headers": headers.raw}, here, self._named(send, given))

    async def _reopen(self, known: tuple[str, str], scope: Scope, send: Send) -> str | None:
        """Return what a session of a process that is gone is called here; None if it is refused, with the answer sent.

        Whoever sends its id gets a session of their own: nothing of it is left that could be another's.
        """
        async with self._opening.setdefault(known, asyncio.Lock()):
            if known not in self._again:
                version = Headers(scope=scope).get(MCP_PROTOCOL_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
                client = {"name": "unknown", "version": "0"}
                params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
                answer = await self._post(scope, {"id": 0, "method": "initialize", "params": params})
                session = Headers(raw=answer[0]["headers"]).get(MCP_SESSION_ID_HEADER)
                if session is None:
                    for message in answer:
                        await send(message)
                    return None
                await self._post(scope, {"method": "notifications/initialized"}, session)
                self._again[known] = session
            return self._again[known]

    async def _post(self, scope: Scope, message: dict[str, Any], session: str | None = None) -> list[Message]:
        """Send a message of the caller's own, and return the answer."""
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        headers = MutableHeaders(raw=list(scope["headers"]))
        headers.update({"content-type": "application/json", "accept": "application/json, text/event-stream"})
        headers["content-length"] = str(len(body))
        del headers[MCP_SESSION_ID_HEADER]
        if session is not None:
            headers[MCP_SESSION_ID_HEADER] = session
        answer: list[Message] = []

        async def stay() -> Message:
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # does not leave

        async def keep(message: Message) -> None:
            answer.append(message)

        await self.app({**scope, "method": "POST", "headers": headers.raw}, replayed(body, stay), keep)
        return answer

    def _named(self, send: Send, name: str | None = None) -> Send:
        """Return a `send` that tells a session's client its name, in place of what it is called here."""

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message["headers"]))
                if MCP_SESSION_ID_HEADER in headers:
                    headers[MCP_SESSION_ID_HEADER] = name or self.peers.prefix + headers[MCP_SESSION_ID_HEADER]
                    message = {**message, "headers": headers.raw}
            await send(message)

        return send_on


@dataclass(eq=False)
class SseSessions(_Anywhere):
    """Sessions over SSE. They end with the connection that they are, so none is opened again."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        match = _ID.fullmatch(dict(query).get(SESSION_ID, ""))
        if match is not None and owner_in(scope) is not None:
            here = await self._here(match, scope, receive, send)
            if here is None:
                return
            receive = here
            query = [(name, match[3] if name == SESSION_ID else value) for name, value in query]
            scope = {**scope, "query_string": urlencode(query).encode("latin-1")}
        await self.app(scope, receive, send)
