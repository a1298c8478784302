"""Bounds how many MCP sessions each caller has open, and all of them together.

A session of the older protocol era costs memory until it ends, and a caller who keeps opening them would fill the
gateway for everybody. The newer era has none. The SDK does not report the end of a session, but only three things end
one: its DELETE, an answer that its id is unknown, and idleness, which is measured here as the SDK measures it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


class Places:
    """Counts the sessions that each caller has open.

    Args:
        per_owner: Most sessions of one caller.
        in_all: Most sessions of all callers.
        metrics: Where refusals are counted.
        idle: Seconds without a request after which a session ends.
        clock: Seconds.
    """

    def __init__(
        self,
        *,
        per_owner: int,
        in_all: int,
        metrics: Metrics,
        idle: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.idle = idle
        self._per_owner = per_owner
        self._in_all = in_all
        self._metrics = metrics
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._owned: Counter[str] = Counter()
        self._connected: Counter[str] = Counter()

    def enter(self, owner: str) -> None:
        """Take a place for a connection that is a session, or that may open one.

        Raises:
            SandpodError: max_sessions of the caller, backend_unavailable for those of all.
        """
        if self._of(owner) >= self._per_owner or self._all() >= self._in_all:
            self._forget_idle()
        if self._of(owner) >= self._per_owner:
            error = SandpodError(
                ErrorCode.MAX_SESSIONS,
                f"You have {self._per_owner} MCP sessions open, the most for one caller.",
                next_step="End sessions that you are done with (DELETE with their Mcp-Session-Id), and use one session "
                "for many calls.",
            )
        elif self._all() >= self._in_all:
            error = SandpodError(
                ErrorCode.BACKEND_UNAVAILABLE,
                f"{self._in_all} MCP sessions are open, the most that this server takes.",
                next_step="Try again in a minute, or use protocol revision 2026-07-28, which needs no session.",
            )
        else:
            self._connected[owner] += 1
            return
        self._metrics.refusals.labels(error.code).inc()
        raise error

    def leave(self, owner: str, session: str | None) -> None:
        """Give the place back, or pass it on to the session that was opened."""
        self._connected[owner] -= 1
        if not self._connected[owner]:
            del self._connected[owner]
        if session is not None:
            self._sessions[session] = _Session(owner, requests=0, used=self._clock())
            self._owned[owner] += 1

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
            known.used = self._clock()

    def ended(self, owner: str, session: str) -> None:
        """Give back the place of a session."""
        if self._known(owner, session) is None:
            return
        del self._sessions[session]
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]

    def _known(self, owner: str, session: str) -> _Session | None:
        known = self._sessions.get(session)
        return known if known is not None and known.owner == owner else None

    def _of(self, owner: str) -> int:
        return self._owned[owner] + self._connected[owner]

    def _all(self) -> int:
        return len(self._sessions) + self._connected.total()

    def _forget_idle(self) -> None:
        since = self._clock() - self.idle
        idle = [(each.owner, name) for name, each in self._sessions.items() if not each.requests and each.used <= since]
        for owner, session in idle:
            self.ended(owner, session)


class SessionLimit:
    """Refuses a request that would open a session above the limits.

    Args:
        app: What serves the others.
        places: The open sessions; shared by both transports.
        always: Whether each request is a session, as an SSE connection is.
        path: The path of such requests.
    """

    def __init__(self, app: ASGIApp, *, places: Places, always: bool, path: str) -> None:
        self._app = app
        self._places = places
        self._always = always
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        owner = owner_in(scope) if scope["type"] == "http" and scope["path"] == self._path else None
        session = Headers(scope=scope).get(MCP_SESSION_ID_HEADER) if owner is not None else None
        if owner is not None and (self._always or _may_open(scope)):
            await self._open(owner, scope, receive, send)
        elif owner is not None and session is not None:
            await self._use(owner, session, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _use(self, owner: str, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request in a session; one that ends it, or finds it ended, gives its place back."""

        def look(start: Message) -> None:
            ends = scope["method"] == "DELETE" and start["status"] < HTTPStatus.BAD_REQUEST
            if ends or start["status"] == HTTPStatus.NOT_FOUND:
                self._places.ended(owner, session)

        with self._places.using(owner, session):
            await self._app(scope, receive, _watched(send, look))

    async def _open(self, owner: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that may open a session, or hold one, in a place of its own."""
        try:
            self._places.enter(owner)
        except SandpodError as error:
            await refused(error, headers=_RETRY)(scope, receive, send)
            return
        opened: str | None = None

        def look(start: Message) -> None:
            nonlocal opened
            if start["status"] < HTTPStatus.BAD_REQUEST:
                opened = Headers(raw=start["headers"]).get(MCP_SESSION_ID_HEADER)

        try:
            await self._app(scope, receive, _watched(send, look))
        finally:
            self._places.leave(owner, opened)


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
