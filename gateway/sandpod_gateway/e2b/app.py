"""The apps of this face: one for managing sandboxes, with the caller's key; one for what is in them, with a token.

A request for what is in a sandbox says which one in a header, or comes to a host of the sandbox's own.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from typing import Final

from fastmcp.server.http import HostOriginGuardMiddleware, RequestContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.e2b.calls import SANDBOX, Calls
from sandpod_gateway.e2b.control import Control
from sandpod_gateway.e2b.envd.files import SIGNED, Contents
from sandpod_gateway.e2b.envd.filesystem import USER, Filesystem
from sandpod_gateway.e2b.envd.processes import Processes
from sandpod_gateway.e2b.envd.rpc import Rpc, refused
from sandpod_gateway.e2b.envd.signatures import signer
from sandpod_gateway.e2b.envd.watches import Watches
from sandpod_gateway.e2b.errors import GONE, NotHereError, answer, answer_inside, sentence
from sandpod_gateway.e2b.hosts import PORT_HEADER, SANDBOX_HEADER, hosts_of
from sandpod_gateway.e2b.interpreter import Interpreter
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.audit import RefusedRequests
from sandpod_gateway.http.mcp.peers import Peers
from sandpod_gateway.http.mcp.transports import standing, with_key
from sandpod_gateway.http.traces import server_spans
from sandpod_gateway.limits import RunLimits
from sandpod_gateway.mcp.tool_results import BUG
from sandpod_gateway.rest.files import RestFiles
from sandpod_gateway.rest.requests import ACTS, COUNTED, key_needed, need_owner
from sandpod_gateway.runs.follow import Check
from sandpod_telemetry import tracing

logger = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[ASGIApp]]
Refuse = Callable[[SandpodError, Request], Response]

PORTS: Final = frozenset({"49983", "49999"})  # of the daemon and the interpreter that E2B has in its sandboxes
_TOKENS: Final = ("x-access-token", "e2b-traffic-access-token")
_INSIDE: Final = ("/health", "/files", "/execute", "/contexts", "/process.Process/", "/filesystem.Filesystem/")
# What E2B has and Sandpod does not, by the beginning of its address.
_NOT_HERE: Final = {
    "/sandboxes/{sandbox}/fork": "Sandboxes can't be forked here.",
    "/sandboxes/{sandbox}/snapshots": "Snapshots of sandboxes are not kept here.",
    "/sandboxes/{sandbox}/network": "A sandbox's network can't be changed here: its template has it.",
    "/sandboxes/{sandbox}/logs": "Sandboxes have no log of their own here.",
    "/v2/sandboxes/{sandbox}/logs": "Sandboxes have no log of their own here.",
    "/snapshots{rest:path}": "Snapshots of sandboxes are not kept here.",
    "/templates{rest:path}": "Templates are the administrator's here: they can't be built by this API.",
    "/v2/templates{rest:path}": "Templates are the administrator's here: they can't be built by this API.",
    "/v3/templates{rest:path}": "Templates are the administrator's here: they can't be built by this API.",
    "/volumes{rest:path}": "There are no volumes here.",
    "/secrets{rest:path}": "Secrets of an account are not kept here.",
}


class E2b:
    """The routes."""

    def __init__(
        self,
        calls: Calls,
        files: RestFiles,
        limits: RunLimits,
        *,
        domain: str | None,
        peers: Peers,
        ending: asyncio.Event,
    ) -> None:
        self._calls = calls
        self._ending = ending
        self._hosts = hosts_of(domain)
        self._control = Control(calls, domain)
        self._contents = Contents(files)
        self._interpreter = Interpreter(calls, limits)
        self._rpc = Rpc(calls, Processes(calls, limits), Filesystem(calls), Watches(calls, peers), ending)

    def app(self, *, hosts: list[str], origins: list[str] | None, refusals: RefusedRequests) -> ASGIApp:
        """Return the ASGI app."""
        hosts = [*hosts, *self._hosts]
        guard = Middleware(HostOriginGuardMiddleware, allowed_hosts=hosts, allowed_origins=origins, mode="strict")
        context = Middleware(RequestContextMiddleware)
        signed = self._calls.mcp.auth.get_middleware() if self._calls.mcp.auth is not None else []
        control = _app(self._managing(), lambda error, _: answer(error), [guard, *signed, context])
        inside = _app(self._inside(), refused, [guard, Middleware(_Admission, calls=self._calls), context])

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            keyed = {**scope, "headers": with_key(scope["headers"]), ACTS: []}
            seen = refusals.seen(keyed, send)

            async def send_on(message: Message) -> None:
                await (send if keyed[ACTS] else seen)(message)  # what became a call has a record as such

            path = scope["path"].removeprefix(scope.get("root_path", ""))
            await (inside if path.startswith(_INSIDE) else control)(keyed, receive, send_on)

        return serve

    def _managing(self) -> dict[str, dict[str, Endpoint]]:
        control, one = self._control, "/sandboxes/{sandbox}"
        found: dict[str, dict[str, Endpoint]] = {one: {"GET": control.get, "DELETE": control.kill}}
        for path in ("/sandboxes", "/v2/sandboxes"):
            found[path] = {"GET": control.list, "POST": control.create}
        for path in (f"{one}/connect", f"/v2{one}/connect", f"{one}/resume"):
            found[path] = {"POST": control.connect}
        for path in (f"{one}/timeout", f"{one}/refreshes"):
            found[path] = {"POST": control.set_timeout}
        found[f"{one}/metrics"] = {"GET": control.metrics}
        found[f"{one}/pause"] = {"POST": control.pause}
        found = {path: {method: self._keyed(each) for method, each in of.items()} for path, of in found.items()}
        for path, message in _NOT_HERE.items():
            refuse = self._keyed(partial(_not_here, message))
            found[path] = dict.fromkeys(("GET", "POST", "PUT", "DELETE", "PATCH"), refuse)
        return found

    def _keyed(self, endpoint: Endpoint) -> Endpoint:
        async def checked(request: Request) -> ASGIApp:
            with self._counted(request):
                return await endpoint(request)

        return checked

    @contextmanager
    def _counted(self, request: Request) -> Iterator[None]:
        """Count a request among its caller's that are in progress, which must have a key."""
        owner = need_owner(request)
        self._calls.requests.enter(owner)
        request.scope[COUNTED] = True
        try:
            yield
        finally:
            self._calls.requests.leave(owner, 0)

    def _inside(self) -> dict[str, dict[str, Endpoint]]:
        interpreter = self._interpreter
        contexts, context = _told_plainly(interpreter.contexts), _told_plainly(interpreter.context)
        return {
            "/health": {"GET": self._health},
            "/files": {"GET": self._files, "POST": self._files},
            "/execute": {"POST": _told_plainly(partial(self._streamed, interpreter.execute))},
            "/contexts": {"GET": contexts, "POST": contexts},
            "/contexts/{context}": {"DELETE": context},
            "/contexts/{context}/restart": {"POST": context},
            "/{service}/{method}": {"POST": partial(self._streamed, self._rpc.answer)},
        }

    async def _streamed(self, begin: Callable[[Request, Check], Awaitable[ASGIApp]], request: Request) -> ASGIApp:
        """Return an answer that may have no end of its own, as one of the caller's requests in progress."""
        token, sandbox, caller = _token(request.headers), request.scope[SANDBOX], current_caller()

        async def check() -> None:
            found = self._calls.tokens.check(token, sandbox)
            if found is None or found.caller != caller:
                raise key_needed()

        with ExitStack() as stack:
            stack.enter_context(self._counted(request))
            response = await begin(request, check)
            counted = stack.pop_all()

        async def stream(scope: Scope, receive: Receive, send: Send) -> None:
            with counted:
                await standing(response, self._ending, scope, receive, send)

        return stream

    async def _health(self, request: Request) -> Response:
        await self._check(request, {"Ready", "Pending"})
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _files(self, request: Request) -> ASGIApp:
        await self._check(request, {"Ready", "Pending", "Suspended"})  # else no file of it is found
        return await self._contents.answer(request)

    async def _check(self, request: Request, states: set[str]) -> None:
        record = await self._calls.parts.sandboxes.find(need_owner(request), request.scope[SANDBOX])
        if record.status not in states:
            step = "Resume it, or create another one."
            raise SandpodError(ErrorCode.SESSION_NOT_FOUND, "The sandbox does not run.", next_step=step)


class _Admission:
    """Lets in who has a token of the sandbox that a request is for."""

    def __init__(self, app: ASGIApp, calls: Calls) -> None:
        self._app = app
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers = Headers(scope=scope)
        scope[SANDBOX] = sandbox = headers.get(SANDBOX_HEADER, "")
        token = self._calls.tokens.check(_token(headers), sandbox)
        try:
            path, query = scope["path"].removeprefix(scope.get("root_path", "")), Request(scope).query_params
            if token is None and path == "/files" and "signature" in query:
                token = await signer(self._calls.tokens, self._calls.parts.sandboxes, sandbox, scope["method"], query)
                scope[SIGNED] = True
            if headers.get(PORT_HEADER, "49983") not in PORTS:
                raise NotHereError("The ports of programs in sandboxes can't be reached here.")
            if token is None:
                raise key_needed()
            _check_user(headers.get("authorization", ""), query.get("username"))
        except SandpodError as error:
            await refused(error, Request(scope))(scope, receive, send)
            return
        scope["user"] = AuthenticatedUser(token)
        await self._app(scope, receive, send)


def _check_user(authorization: str, named: str | None) -> None:
    """Raise for another user than the one there is."""
    kind, _, value = authorization.partition(" ")
    if kind.lower() == "basic":
        try:
            named = base64.b64decode(value, validate=True).decode().partition(":")[0]
        except (binascii.Error, ValueError):
            named = None
    if named not in {None, "", USER}:
        message, step = f"Programs and files are those of one user here, who is {USER!r}.", "Leave the user out."
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)


def _token(headers: Headers) -> str:
    return next((headers[name] for name in _TOKENS if name in headers), "")


def _told_plainly(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint whose refusals are text, since clients show all of their body."""

    async def answering(request: Request) -> ASGIApp:
        try:
            return await endpoint(request)
        except SandpodError as error:
            said = "The sandbox was not found." if error.code in GONE else sentence(error)
            return PlainTextResponse(said, status_code=answer_inside(error).status_code)

    return answering


async def _not_here(message: str, _: Request) -> ASGIApp:
    raise NotHereError(message)


def _app(endpoints: Mapping[str, Mapping[str, Endpoint]], refuse: Refuse, middleware: list[Middleware]) -> Starlette:
    async def missing(request: Request, _error: Exception) -> Response:
        step = "See the documentation for what there is."
        return refuse(SandpodError(ErrorCode.NOT_FOUND, "There is nothing at this address.", next_step=step), request)

    routes = [Route(path, partial(_coded, of, refuse), methods=list(of)) for path, of in endpoints.items()]
    handlers = {HTTPStatus.NOT_FOUND: missing, HTTPStatus.METHOD_NOT_ALLOWED: missing}
    app = Starlette(routes=routes, middleware=[*server_spans(), *middleware], exception_handlers=handlers)
    app.router.redirect_slashes = False  # clients would send their key wherever that leads
    return app


async def _coded(endpoints: Mapping[str, Endpoint], refuse: Refuse, request: Request) -> ASGIApp:
    try:
        method = request.method if request.method in endpoints else "GET"  # HEAD, which has the same answer
        return await endpoints[method](request)
    except SandpodError as error:
        tracing.fail(error.code)
        return refuse(error, request)
    except ClientDisconnect:
        return Response(status_code=HTTPStatus.BAD_REQUEST)  # nobody reads it
    except Exception:
        logger.exception("A request failed: %s", request.url.path)
        return refuse(BUG, request)
