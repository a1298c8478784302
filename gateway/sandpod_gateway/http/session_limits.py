"""Bounds how many MCP sessions each caller has open, and all of them together.

Middleware of both of `transports.py`'s apps, behind their check of keys: a session of the older protocol era costs
memory until it ends, and who opens them without end would fill the gateway for everybody. The newer era has none.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.api_keys import LOCAL_OWNER, owner_of
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.metrics import Metrics

_RETRY_SECONDS: Final = 60


class Places:
    """Who has how many sessions open.

    Args:
        per_owner: Most sessions of one caller.
        in_all: Most sessions of all callers.
        metrics: Where refusals are counted.
    """

    def __init__(self, *, per_owner: int, in_all: int, metrics: Metrics) -> None:
        self._per_owner = per_owner
        self._in_all = in_all
        self._live: Callable[[], Collection[str]] = tuple
        self._metrics = metrics
        self._sessions: defaultdict[str, set[str]] = defaultdict(set)
        self._connected: Counter[str] = Counter()

    def ask(self, live: Callable[[], Collection[str]]) -> None:
        """Set what gives the ids of the sessions over streamable HTTP that have not ended.

        There is no word of an end, so they are asked for whenever no place seems to be left, and what is remembered
        stays as bounded as what is open.
        """
        self._live = live

    def enter(self, owner: str) -> None:
        """Take a place for a connection that is a session, or that may open one.

        Raises:
            SandpodError: max_sessions of the caller, backend_unavailable for those of all.
        """
        if self._full(owner):
            self._forget_ended()
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
            self._sessions[owner].add(session)

    def _full(self, owner: str) -> bool:
        return self._of(owner) >= self._per_owner or self._all() >= self._in_all

    def _of(self, owner: str) -> int:
        return len(self._sessions.get(owner, ())) + self._connected[owner]

    def _all(self) -> int:
        return sum(map(len, self._sessions.values())) + self._connected.total()

    def _forget_ended(self) -> None:
        live = self._live()
        for owner in list(self._sessions):
            self._sessions[owner].intersection_update(live)
            if not self._sessions[owner]:
                del self._sessions[owner]


class SessionLimit:
    """Refuses a request that would open a session too many.

    Args:
        app: What serves it.
        places: Who has how many; shared by both transports.
        always: Whether each request is a session, as an SSE connection is.
        path: The path of such requests.
    """

    def __init__(self, app: ASGIApp, *, places: Places, always: bool, path: str) -> None:
        self._app = app
        self._places = places
        self._always = always
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, holding a place while it may open a session."""
        owner = owner_in(scope)
        if owner is None or scope["path"] != self._path or not (self._always or _may_open(scope)):
            await self._app(scope, receive, send)
            return
        try:
            self._places.enter(owner)
        except SandpodError as error:
            await refused(error, _RETRY_SECONDS)(scope, receive, send)
            return
        opened: str | None = None

        async def watch(message: Message) -> None:
            nonlocal opened
            if message["type"] == "http.response.start" and message["status"] < HTTPStatus.BAD_REQUEST:
                opened = Headers(raw=message["headers"]).get(MCP_SESSION_ID_HEADER)
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            self._places.leave(owner, opened)


def owner_in(scope: Scope) -> str | None:
    """The caller, or None for one who will be refused for his key."""
    if scope["type"] != "http":
        return None
    user = scope.get("user")
    if user is None:
        return LOCAL_OWNER
    return owner_of(user.access_token) if isinstance(user, AuthenticatedUser) else None


def _may_open(scope: Scope) -> bool:
    """Whether the SDK's session manager would make a session for a request."""
    headers = Headers(scope=scope)
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    return MCP_SESSION_ID_HEADER not in headers and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS)


def refused(error: SandpodError, retry_after: int) -> JSONResponse:
    """Return the answer to a request that is refused before it is read.

    Args:
        error: Why.
        retry_after: Seconds after which to try again.
    """
    busy = error.code == ErrorCode.BACKEND_UNAVAILABLE
    told: dict[str, Any] = {
        "code": INVALID_REQUEST,
        "message": f"{error.message} {error.next_step}",
        "data": error.problem().model_dump(mode="json"),
    }
    return JSONResponse(
        {"jsonrpc": "2.0", "id": None, "error": told},  # the id stands in what was not read
        status_code=HTTPStatus.SERVICE_UNAVAILABLE if busy else HTTPStatus.TOO_MANY_REQUESTS,
        headers={"retry-after": str(retry_after)},
    )
