"""The pages and endpoints of sign-in through the gateway: bounded, since anybody may call them."""

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cachetools import TTLCache
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.oidc.proxy import SignIn
from sandpod_gateway.auth.verifier import RESOURCE_PATH
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.limits import replayed
from sandpod_gateway.http.negotiation import problem
from sandpod_gateway.metrics import Metrics

MAX_BODY: Final = 64 * 1024  # bytes of a form or a registration
PER_MINUTE: Final = 600  # requests of one address; a sign-in takes about eight, and many users may share an address
MAX_ADDRESSES: Final = 10_000
# FastMCP's pages show its logo, from its own site; and no page of another may show them.
_POLICY: Final = "img-src data:; frame-ancestors 'none'"


@dataclass(eq=False)
class Bounds:
    """Counts requests by address."""

    metrics: Metrics
    _counts: TTLCache[str, Counter[None]] = field(default_factory=lambda: TTLCache(MAX_ADDRESSES, 60.0), init=False)

    def enter(self, scope: Scope) -> None:
        """Count a request. Raises SandpodError (rate_limited): its address has sent too many."""
        host = (scope.get("client") or ("", 0))[0]
        count = self._counts.setdefault(host, Counter())  # begins anew every minute
        count[None] += 1
        if count[None] > PER_MINUTE:
            message = f"Over {PER_MINUTE} sign-in requests came from your address within a minute."
            raise SandpodError(ErrorCode.RATE_LIMITED, message, next_step="Try again in a minute.")


@dataclass(eq=False)
class Guarded:
    """One endpoint; refuses a request that is too large, or one too many, or comes while nobody can sign in."""

    app: ASGIApp
    sign_in: SignIn
    bounds: Bounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            self.bounds.enter(scope)
            await self.sign_in.check_ready()
            body = await _body(scope, receive)
        except SandpodError as error:
            self.bounds.metrics.refusals.labels(error.code).inc()
            headers = {"retry-after": "60" if error.code is ErrorCode.RATE_LIMITED else "5"}
            await problem(error, headers=headers)(scope, receive, send)
        except ClientDisconnect:  # nobody reads an answer
            return
        else:
            await self.app(scope, replayed(body, receive), partial(_confined, send))


def sign_in_routes(sign_in: SignIn, metrics: Metrics) -> list[Route]:
    """Return all routes of sign-in, what leads clients to it among them."""
    bounds = Bounds(metrics)
    routes = sign_in.get_routes(RESOURCE_PATH)
    for route in routes:
        if not route.path.startswith("/.well-known/"):  # these never change
            route.app = Guarded(route.app, sign_in, bounds)
    return routes


async def _confined(send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        MutableHeaders(scope=message).append("content-security-policy", _POLICY)
    await send(message)


async def _body(scope: Scope, receive: Receive) -> bytes:
    """Return a request's body. Raises SandpodError (invalid_argument): it is too large."""
    body = bytearray()
    async for part in Request(scope, receive).stream():
        body += part
        if len(body) > MAX_BODY:
            message, step = f"The request has over {MAX_BODY} bytes.", "Send a shorter one."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
    return bytes(body)
