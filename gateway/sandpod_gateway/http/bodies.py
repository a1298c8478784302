"""Reads the body of each MCP request over HTTP within bounds, before anything parses it.

A caller without a valid key is refused unread.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.api import messages
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.api_keys import LOCAL_OWNER, owner_of
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.refusals import JSON, refused
from sandpod_gateway.metrics import Metrics

BODY_SECONDS: Final = 60.0  # for a body of 4 MiB over half a megabit a second
MAX_BODIES: Final = 64 * 2**20  # bytes of one caller's requests in progress; each is kept until its answer
_RETRY: Final = {"retry-after": "1"}


def owner_in(scope: Scope) -> str | None:
    """Return whose request it is, or None for one whose key will be refused."""
    if scope["type"] != "http":
        return None
    user = scope.get("user")
    if user is None:
        return LOCAL_OWNER
    return owner_of(user.access_token) if isinstance(user, AuthenticatedUser) else None


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
            raise self._refusal(f"You have {self.per_owner} requests in progress, the most for one caller.")
        self._count[owner] += 1

    def hold(self, owner: str, size: int) -> None:
        """Count bytes of a request's body. Raises SandpodError (rate_limited): the caller's requests hold too much."""
        if self._bytes[owner] + size > MAX_BODIES:
            raise self._refusal(f"Your requests in progress hold {MAX_BODIES} bytes, the most for one caller.")
        self._bytes[owner] += size

    def leave(self, owner: str, size: int) -> None:
        """Take a request and its bytes off the count."""
        self._count[owner] -= 1
        self._bytes[owner] -= size
        if not self._count[owner]:
            del self._count[owner], self._bytes[owner]

    def refuse(self, code: ErrorCode) -> None:
        """Count a request that is not handled."""
        self.metrics.refusals.labels(code).inc()

    def _refusal(self, message: str) -> SandpodError:
        self.refuse(ErrorCode.RATE_LIMITED)
        return SandpodError(ErrorCode.RATE_LIMITED, message, next_step="Wait for some of them to be answered.")


@dataclass(eq=False)
class BoundedBodies:
    """Refuses requests whose bodies are too large, too slow or hold too much, and callers with too many of them."""

    app: ASGIApp  # what serves the others; gets each body in one piece
    requests: Requests  # those in progress; shared by both transports
    path: str  # what the paths of messages begin with; nobody reads what comes to others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request once its body is there."""
        owner = owner_in(scope)
        if owner is None or scope["method"] != "POST" or not scope["path"].startswith(self.path):
            await self.app(scope, receive, send)
            return
        body = bytearray()
        try:
            self.requests.enter(owner)
        except SandpodError as error:
            await refused(error, headers=_RETRY)(scope, receive, send)
            return
        try:
            answer = await self._read(owner, scope, receive, body)
            if answer is None:
                whole: Message = {"type": "http.request", "body": bytes(body), "more_body": False}
                await self.app(scope, replayed(whole, receive), send)
            else:
                await answer(scope, receive, send)
        except ClientDisconnect:
            pass  # nobody reads an answer
        finally:
            self.requests.leave(owner, len(body))

    async def _read(self, owner: str, scope: Scope, receive: Receive, body: bytearray) -> Response | None:
        """Read the body; return the answer where the request goes no further."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                complete = await self._fill(owner, scope, receive, body)
        except TimeoutError:
            return Response(status_code=HTTPStatus.REQUEST_TIMEOUT, headers={"connection": "close"})
        except SandpodError as error:
            return refused(error, headers=_RETRY)
        refusal = messages.refusal(bytes(body)) if complete else messages.too_large(bytes(body))
        if refusal is None:
            return None
        self.requests.refuse(refusal.error)
        status = HTTPStatus.BAD_REQUEST if complete else HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        return Response(refusal.body(), status_code=status, media_type=JSON)

    async def _fill(self, owner: str, scope: Scope, receive: Receive, body: bytearray) -> bool:
        """Return whether all of the body is there; it is not where it is too large."""
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > messages.MAX_BYTES:
            return False
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part = message.get("body", b"")
            if len(body) + len(part) > messages.MAX_BYTES:
                return False
            self.requests.hold(owner, len(part))
            body += part
            more = message.get("more_body", False)
        return True


def replayed(first: Message, receive: Receive) -> Receive:
    """Return a `receive` that gives a message once more, and then what follows it."""
    waiting = [first]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
