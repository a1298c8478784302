"""The pages and endpoints of sign-in through the gateway: bounded, since anybody may call them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from cachetools import TTLCache
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.audit.act import current, note
from sandpod_gateway.audit.log import AuditLog
from sandpod_gateway.auth.callers import facts_of
from sandpod_gateway.auth.oidc.claims import RefusedError
from sandpod_gateway.auth.verifier import RESOURCE_PATH
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.audit import SignInAudit
from sandpod_gateway.http.limits import replayed
from sandpod_gateway.http.negotiation import problem
from sandpod_gateway.metrics import Metrics

if TYPE_CHECKING:
    from sandpod_gateway.auth.oidc.proxy import SignIn

MAX_BODY: Final = 64 * 1024  # bytes of a form or a registration
PER_MINUTE: Final = 600  # requests of one address; a sign-in takes about eight, and many users may share an address
MAX_ADDRESSES: Final = 10_000
# FastMCP's pages show its logo, from its own site; and no page of another may show them.
_POLICY: Final = "img-src data:; frame-ancestors 'none'"
RESOURCE_METADATA: Final = "/.well-known/oauth-protected-resource"
_GRANTS: Final = {"authorization_code": "issue", "refresh_token": "refresh"}


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
    sign_in: "SignIn"
    bounds: Bounds
    log: AuditLog

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            self.bounds.enter(scope)
            await self.sign_in.check_ready()
            body = await _body(scope, receive)
            await self._begin(scope, body, receive)
            await self.app(scope, replayed(body, receive), partial(_confined, send))
        except SandpodError as error:
            await self._refuse(error, scope, receive, send)
        except RefusedError as refused:  # of who ends a session while the provider can't be asked whose it is
            await self._refuse(refused.error, scope, receive, send)
        except ClientDisconnect:  # nobody reads an answer
            return

    async def _begin(self, scope: Scope, body: bytes, receive: Receive) -> None:
        """Tell the audit log what the request is about to do, and for whom. Raises backend_unavailable, as the log."""
        if current.get() is None or scope["method"] != "POST":
            return
        form = await _form(scope, body, receive)
        given = {"/token": _GRANTS.get(form.get("grant_type", "")), "/revoke": "revoke"}.get(scope["path"])
        note(method="consent" if scope["path"] == "/consent" else given)
        if given is not None and (caller := await self.sign_in.caller_of(form)) is not None:
            client = await self.sign_in.get_client(form["client_id"])
            await self.log.begin(**facts_of(caller), client=None if client is None else client.client_name)

    async def _refuse(self, error: SandpodError, scope: Scope, receive: Receive, send: Send) -> None:
        self.bounds.metrics.refusals.labels(error.code).inc()
        headers = {"retry-after": "60" if error.code is ErrorCode.RATE_LIMITED else "5"}
        await problem(error, headers=headers)(scope, receive, send)


def sign_in_routes(sign_in: "SignIn", metrics: Metrics, log: AuditLog) -> list[Route]:
    """Return all routes of sign-in, what leads clients to it among them."""
    bounds = Bounds(metrics)
    routes = sign_in.get_routes(RESOURCE_PATH)
    for route in routes:
        if not route.path.startswith("/.well-known/"):  # these never change
            guarded = Guarded(route.app, sign_in, bounds, log)
            route.app = SignInAudit(guarded, log) if log.on else guarded
    return routes


def in_both_spellings(routes: Sequence[BaseRoute]) -> list[BaseRoute]:
    """Return routes, with the description of the resource without the resource's path, too: some clients ask there."""
    described = [
        Route(RESOURCE_METADATA, route.endpoint, methods=sorted(route.methods or ()))
        for route in routes
        if isinstance(route, Route) and route.path == RESOURCE_METADATA + RESOURCE_PATH
    ]
    return [*routes, *described]


async def _confined(send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        MutableHeaders(scope=message).append("content-security-policy", _POLICY)
    await send(message)


async def _form(scope: Scope, body: bytes, receive: Receive) -> dict[str, str]:
    """Return a form as FastMCP will read it; empty where it is none."""
    try:
        fields = await Request(scope, replayed(body, receive)).form()
    except HTTPException:
        return {}
    return {name: value for name, value in fields.items() if isinstance(value, str)}


async def _body(scope: Scope, receive: Receive) -> bytes:
    """Return a request's body. Raises SandpodError (invalid_argument): it is too large."""
    body = bytearray()
    async for part in Request(scope, receive).stream():
        body += part
        if len(body) > MAX_BODY:
            message, step = f"The request has over {MAX_BODY} bytes.", "Send a shorter one."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
    return bytes(body)
