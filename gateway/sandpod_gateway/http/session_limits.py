"""Bounds how many MCP sessions each caller has open, and all of them together.

A session of the older protocol era costs memory until it ends, and a caller who keeps opening them would fill the
gateway for everybody. The newer era has none. The SDK does not report the end of a session, but only three things end
one: its DELETE, an answer that its id is unknown, and idleness, which is measured here as the SDK measures it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.bodies import owner_in
from sandpod_gateway.http.refusals import refused
from sandpod_gateway.metrics import Metrics

IDLE_SECONDS: Final = 1800.0
"""Time without a request after which a session over streamable HTTP ends."""
_RETRY: Final = {"retry-after": "60"}


@dataclass(slots=True)
class _Session:
    """A session over streamable HTTP."""

    owner: str
    requests: int  # in progress
    used: float  # when the last one ended


@dataclass(eq=False, kw_only=True)
class OpenSessions:
    """Counts the sessions that each caller has open; each refusal counts in the metrics."""

    per_owner: int  # most sessions of one caller
    in_all: int  # most sessions of all callers
    metrics: Metrics
    idle: float = IDLE_SECONDS  # seconds without a request after which a session ends
    clock: Callable[[], float] = time.monotonic  # seconds
    _sessions: dict[str, _Session] = field(default_factory=dict, init=False)
    _taken: Counter[str] = field(default_factory=Counter, init=False)  # by sessions, and connections that may be one

    def enter(self, owner: str) -> None:
        """Take a place for a connection that is a session, or that may open one.

        Raises:
            SandpodError: max_sessions of the caller, backend_unavailable for those of all.
        """
        if self._taken[owner] >= self.per_owner or self._taken.total() >= self.in_all:
            self._forget_idle()
        if self._taken[owner] >= self.per_owner:
            raise self._refusal(
                ErrorCode.MAX_SESSIONS,
                f"You have {self.per_owner} MCP sessions open, the most for one caller.",
                "End sessions that you are done with (DELETE with their Mcp-Session-Id), and use one session for many "
                "calls.",
            )
        if self._taken.total() >= self.in_all:
            raise self._refusal(
                ErrorCode.BACKEND_UNAVAILABLE,
                f"{self.in_all} MCP sessions are open, the most that this server takes.",
                "Try again in a minute, or use protocol revision 2026-07-28, which needs no session.",
            )
        self._taken[owner] += 1

    def leave(self, owner: str, session: str | None) -> None:
        """Give the place back, or pass it on to the session that was opened."""
        if session is None:
            self._give_back(owner)
        else:
            self._sessions[session] = _Session(owner, requests=0, used=self.clock())

    @contextmanager
    def using(self, owner: str, session: str) -> Iterator[None]:
        """Count a request in a session: it is not idle meanwhile."""
        known = self._known(owner, session)
        if known is None:
            yield  # it will be refused
            return
        known.requests += 1
        try:
            yield
        finally:
            known.requests -= 1
            known.used = self.clock()

    def ended(self, owner: str, session: str) -> None:
        """Give back the place of a session."""
        if self._known(owner, session) is not None:
            del self._sessions[session]
            self._give_back(owner)

    def _known(self, owner: str, session: str) -> _Session | None:
        known = self._sessions.get(session)
        return known if known is not None and known.owner == owner else None

    def _refusal(self, code: ErrorCode, message: str, next_step: str) -> SandpodError:
        self.metrics.refusals.labels(code).inc()
        return SandpodError(code, message, next_step=next_step)

    def _give_back(self, owner: str) -> None:
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]

    def _forget_idle(self) -> None:
        since = self.clock() - self.idle
        idle = [(each.owner, name) for name, each in self._sessions.items() if not each.requests and each.used <= since]
        for owner, session in idle:
            self.ended(owner, session)


@dataclass(eq=False)
class SessionLimit:
    """Refuses a request that would open a session above the limits."""

    app: ASGIApp  # what serves the others
    sessions: OpenSessions  # the open sessions; shared by both transports
    always: bool  # each request is a session, as an SSE connection is
    path: str  # of such requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        owner = owner_in(scope) if scope["type"] == "http" and scope["path"] == self.path else None
        session = Headers(scope=scope).get(MCP_SESSION_ID_HEADER) if owner is not None else None
        if owner is not None and (self.always or _may_open(scope)):
            await self._open(owner, scope, receive, send)
        elif owner is not None and session is not None:
            await self._use(owner, session, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _use(self, owner: str, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request in a session; one that ends it, or finds it ended, gives its place back."""

        def look(start: Message) -> None:
            ends = scope["method"] == "DELETE" and start["status"] < HTTPStatus.BAD_REQUEST
            if ends or start["status"] == HTTPStatus.NOT_FOUND:
                self.sessions.ended(owner, session)

        with self.sessions.using(owner, session):
            await self.app(scope, receive, _watched(send, look))

    async def _open(self, owner: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that may open a session, or hold one, in a place of its own."""
        try:
            self.sessions.enter(owner)
        except SandpodError as error:
            await refused(error, headers=_RETRY)(scope, receive, send)
            return
        opened: str | None = None

        def look(start: Message) -> None:
            nonlocal opened
            if start["status"] < HTTPStatus.BAD_REQUEST:
                opened = Headers(raw=start["headers"]).get(MCP_SESSION_ID_HEADER)

        try:
            await self.app(scope, receive, _watched(send, look))
        finally:
            self.sessions.leave(owner, opened)


def _watched(send: Send, look: Callable[[Message], None]) -> Send:
    """Return a `send` that shows the start of an answer before it sends it on."""

    async def watch(message: Message) -> None:
        if message["type"] == "http.response.start":
            look(message)
        await send(message)

    return watch


def _may_open(scope: Scope) -> bool:
    """Return whether the SDK's session manager would make a session for a request."""
    headers = Headers(scope=scope)
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    return MCP_SESSION_ID_HEADER not in headers and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS)
