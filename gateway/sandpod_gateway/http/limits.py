"""Bounds on what each caller has open over HTTP: requests in progress, the bytes of their bodies, and MCP sessions.

A body is read before anything parses it; that of a caller without a valid key is not read.

A session of the older protocol era costs memory until it ends; the newer era has none. The SDK does not report the end
of a session, but only three things end one: its DELETE, an answer that its id is unknown, and idleness, which is
measured here as the SDK measures it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final

from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.api import messages
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.current import owner_in
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.negotiation import JSON, negotiated, refused
from sandpod_gateway.metrics import Metrics

BODY_SECONDS: Final = 60.0  # for a body of 4 MiB over half a megabit a second
MAX_BODIES: Final = 64 * 2**20  # bytes of one caller's requests in progress; each is kept until its answer
IDLE_SECONDS: Final = 1800.0  # without a request, after which a session over streamable HTTP ends
_WAIT: Final = "Wait for some of them to be answered."
STATEFUL: Final = frozenset({None, *HANDSHAKE_PROTOCOL_VERSIONS})  # for which the SDK makes a session


@dataclass(eq=False)
class Requests:
    """Counts the requests that each caller has in progress, and their bytes; each refusal counts in the metrics."""

    per_owner: int  # most requests of one caller
    metrics: Metrics
    _count: Counter[str] = field(default_factory=Counter, init=False)
    _bytes: Counter[str] = field(default_factory=Counter, init=False)

    def enter(self, owner: str) -> None:
        """Count a request. Raises SandpodError (rate_limited): the caller has too many in progress."""
        if self._count[owner] >= self.per_owner:
            message = f"You have {self.per_owner} requests in progress, the most for one caller."
            raise SandpodError(ErrorCode.RATE_LIMITED, message, next_step=_WAIT)
        self._count[owner] += 1

    def hold(self, owner: str, size: int) -> None:
        """Count bytes of a request's body. Raises SandpodError (rate_limited): the caller's requests hold too much."""
        if self._bytes[owner] + size > MAX_BODIES:
            message = f"Your requests in progress hold {MAX_BODIES} bytes, the most for one caller."
            raise SandpodError(ErrorCode.RATE_LIMITED, message, next_step=_WAIT)
        self._bytes[owner] += size

    def drop(self, owner: str, size: int) -> None:
        """Take bytes off the count that are not held any more."""
        self._bytes -= Counter({owner: size})  # keeps no zeros

    def leave(self, owner: str, size: int) -> None:
        """Take a request and its bytes off the count."""
        self._count -= Counter([owner])
        self.drop(owner, size)


@dataclass(eq=False)
class BoundedBodies:
    """Refuses requests whose bodies are too large, too slow or hold too much, and callers with too many of them."""

    app: ASGIApp  # what serves the others; gets each body in one piece
    requests: Requests  # those in progress; shared by both transports
    negotiates: bool = False  # whether requests are adapted to what the SDK takes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request once its body is there."""
        owner = owner_in(scope)
        if owner is None or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body = bytearray()
        with suppress(ClientDisconnect), ExitStack() as stack:  # without a client, nobody reads an answer
            try:
                self.requests.enter(owner)
                stack.callback(lambda: self.requests.leave(owner, len(body)))
                answer = await self._read(owner, scope, receive, body)
            except SandpodError as error:
                self.requests.metrics.refusals.labels(error.code).inc()
                answer = refused(error, headers={"retry-after": "1"})
            if answer is None:
                receive = replayed(bytes(body), receive)
                answer = partial(negotiated, self.app, bytes(body)) if self.negotiates else self.app
            await answer(scope, receive, send)

    async def _read(self, owner: str, scope: Scope, receive: Receive, body: bytearray) -> ASGIApp | None:
        """Read the body; return the answer where the request goes no further. Raises rate_limited."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                complete = await self._fill(owner, scope, receive, body)
        except TimeoutError:
            return Response(status_code=HTTPStatus.REQUEST_TIMEOUT, headers={"connection": "close"})
        refusal = messages.refusal(bytes(body)) if complete else messages.too_large(bytes(body))
        if refusal is None:
            return None
        self.requests.metrics.refusals.labels(refusal.error).inc()
        status = HTTPStatus.BAD_REQUEST if complete else HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        return Response(refusal.body(), status_code=status, media_type=JSON)

    async def _fill(self, owner: str, scope: Scope, receive: Receive, body: bytearray) -> bool:
        """Return whether all of the body is there; it is not where it is too large."""
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > messages.MAX_BYTES:
            return False
        async for part in Request(scope, receive).stream():
            if len(body) + len(part) > messages.MAX_BYTES:
                return False
            self.requests.hold(owner, len(part))
            body += part
        return True


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body in one piece, and then what follows it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


async def until_left(receive: Receive) -> None:
    """Return once the client has left. Nothing else that comes is kept."""
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(slots=True)
class _Session:
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
    _sessions: dict[tuple[str, str], _Session] = field(default_factory=dict, init=False)  # by owner and id
    _taken: Counter[str] = field(default_factory=Counter, init=False)  # by sessions, and connections that may be one

    def enter(self, owner: str) -> None:
        """Take a place for a session. Raises max_sessions of the caller, backend_unavailable for those of all."""
        if self._taken[owner] >= self.per_owner or self._taken.total() >= self.in_all:
            since = self.clock() - self.idle
            for known, each in tuple(self._sessions.items()):
                if not each.requests and each.used <= since:
                    self.ended(*known)
        if self._taken[owner] >= self.per_owner:
            message = f"You have {self.per_owner} MCP sessions open, the most for one caller."
            step = (
                "End sessions that you are done with (DELETE with their Mcp-Session-Id), and use one session for many "
                "calls."
            )
            raise SandpodError(ErrorCode.MAX_SESSIONS, message, next_step=step)
        if self._taken.total() >= self.in_all:
            message = f"{self.in_all} MCP sessions are open, the most that this server takes."
            step = "Try again in a minute, or use protocol revision 2026-07-28, which needs no session."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step)
        self._taken[owner] += 1

    def leave(self, owner: str, session: str | None) -> None:
        """Give the place back, or pass it on to the session that was opened."""
        if session is not None:
            self._sessions[owner, session] = _Session(requests=0, used=self.clock())
        else:
            self._taken -= Counter([owner])

    @contextmanager
    def using(self, owner: str, session: str) -> Iterator[None]:
        """Count a request in a session: it is not idle meanwhile."""
        unknown = _Session(requests=0, used=0)  # a request in no session is refused
        known = self._sessions.get((owner, session), unknown)
        known.requests += 1
        try:
            yield
        finally:
            known.requests -= 1
            known.used = self.clock()

    def ended(self, owner: str, session: str) -> None:
        """Give back the place of a session."""
        if self._sessions.pop((owner, session), None) is not None:
            self.leave(owner, None)


@dataclass(eq=False)
class SessionLimit:
    """Refuses a request that would open a session above the limits."""

    app: ASGIApp  # what serves the others
    sessions: OpenSessions  # the open sessions; shared by both transports
    always: bool = False  # each GET is a session, as an SSE connection is

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        owner = owner_in(scope)
        if owner is None or (self.always and scope["method"] != "GET"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        session = headers.get(MCP_SESSION_ID_HEADER)
        if self.always or (session is None and headers.get(MCP_PROTOCOL_VERSION_HEADER) in STATEFUL):
            await self._open(owner, scope, receive, send)
        elif session is not None:
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
        """Serve a request that may open a session, or is one, if there is a place for it."""
        try:
            self.sessions.enter(owner)
        except SandpodError as error:
            self.sessions.metrics.refusals.labels(error.code).inc()
            await refused(error, headers={"retry-after": "60"})(scope, receive, send)
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
