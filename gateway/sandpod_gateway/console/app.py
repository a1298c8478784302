"""The app below /console: signs users in, then each page at its address."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from fastmcp import FastMCP
from fastmcp.server.http import HostOriginGuardMiddleware, RequestContextMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.current import owner_in
from sandpod_gateway.auth.factory import is_proxied
from sandpod_gateway.auth.oidc.proxied import CONSOLE_BACK
from sandpod_gateway.console.account_pages import AccountPages
from sandpod_gateway.console.assets import Assets
from sandpod_gateway.console.calls import Call, Calls, RefusedCall
from sandpod_gateway.console.everybody import EverybodyPages
from sandpod_gateway.console.pages import SandboxPages
from sandpod_gateway.console.provider import ProviderPages
from sandpod_gateway.console.session import PREFIX, Sessions, is_own
from sandpod_gateway.console.sign_in import SIGN_IN, SignInPages, local_path
from sandpod_gateway.console.views import FRAME_POLICY, Views, is_fragment
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.audit import RefusedRequests
from sandpod_gateway.http.routes import with_any_name
from sandpod_gateway.mcp.tool_results import BUG
from sandpod_gateway.rest.requests import ACTS, key_needed
from sandpod_gateway.runs.activity import Activities
from sandpod_gateway.sandboxes.administration import Administration
from sandpod_gateway.sandboxes.service import Sandboxes

logger = logging.getLogger(__name__)

Page = Callable[[Request], Awaitable[ASGIApp]]
_POST: Final = ("POST",)


@dataclass(frozen=True, slots=True)
class Console:
    """The routes; `call` calls any tool of REST."""

    mcp: FastMCP[Any]
    call: Call
    sandboxes: Sandboxes
    administration: Administration
    activities: Activities
    toolsets: frozenset[str]
    sessions: Sessions
    version: str
    sign_in: Sequence[BaseRoute]  # the routes where clients sign in

    def routes(self, *, hosts: list[str], origins: list[str] | None, refusals: RefusedRequests) -> list[Route | Mount]:
        """Return the routes of the server that are the console's."""

        async def door(_: Request) -> Response:
            return RedirectResponse(f"{PREFIX}/", HTTPStatus.SEE_OTHER)

        assets = Assets()
        # Anybody may have the files: a frame that is nobody's origin gets them, too.
        files = Route(f"{PREFIX}/static/{{version}}/{{path:path}}", assets.answer)
        app = self._app(assets, hosts, origins, refusals)
        return [Route("/", door), Route(PREFIX, door), files, with_any_name(Mount(PREFIX, app))]

    def _app(self, assets: Assets, hosts: list[str], origins: list[str] | None, refusals: RefusedRequests) -> ASGIApp:
        views = Views(assets, self.mcp.auth is not None, self.version)
        calls = Calls(self.call, self.mcp)
        boxes = SandboxPages(views, calls, self.sandboxes, self.activities, self.toolsets)
        everybody = EverybodyPages(boxes, self.administration)
        account = AccountPages(views, calls, self.sessions.public_url)
        door = SignInPages(views, self.sessions, self.mcp.auth, refusals.log)
        guarded = _Guarded(views, self.sessions)

        def page(path: str, answer: Page, *methods: str) -> Route:
            return with_any_name(Route(path, guarded.page(answer), methods=list(methods or ("GET",))))

        routes = [
            Route("/frame", guarded.open(_frame(views))),
            Route(SIGN_IN, guarded.open(door.show)),
            Route(SIGN_IN, guarded.open(door.sign_in), methods=_POST),
            *self._provider(views, guarded),
            Route("/sign-out", guarded.open(door.sign_out), methods=_POST),
            page("/", boxes.all),
            page("/rows", boxes.rows),
            page("/sandboxes", boxes.create, "POST"),
            page("/sandboxes/{sandbox}", boxes.close, "DELETE"),
            page("/sandboxes/{sandbox}", boxes.one),
            page("/sandboxes/{sandbox}/state", boxes.state),
            page("/act/{act}", boxes.act, "POST"),
            page("/all", everybody.all),
            page("/all/rows", everybody.rows),
            page("/all/{sandbox}", everybody.one),
            page("/all/{sandbox}/state", everybody.state),
            page("/all/{sandbox}", everybody.close, "DELETE"),
            page("/pools", account.pools),
            page("/pools/{pool}", account.scale, "POST"),
            page("/usage", account.usage),
            page("/keys", account.keys),
            page("/keys", account.create_key, "POST"),
            page("/keys/{key_id}/rotate", account.rotate_key, "POST"),
            page("/keys/{key_id}", account.revoke_key, "DELETE"),
            page("/audit", account.audit),
            page("/connect", account.connect),
            page("/{path:path}", _nothing, "GET", "POST", "DELETE", "PUT", "PATCH"),
        ]
        signed = self.mcp.auth.get_middleware() if self.mcp.auth is not None else []
        guard = Middleware(HostOriginGuardMiddleware, allowed_hosts=hosts, allowed_origins=origins, mode="strict")
        app = Starlette(routes=routes, middleware=[guard, *signed, Middleware(RequestContextMiddleware)])
        app.router.redirect_slashes = False

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            marked = {**scope, ACTS: []}
            refused = refusals.seen(marked, send)

            async def send_on(message: Message) -> None:
                await (send if marked[ACTS] else refused)(message)  # what became a call has a record as such

            await app(marked, receive, send_on)

        return serve

    def _provider(self, views: Views, guarded: "_Guarded") -> list[Route]:
        """Return the routes by which users sign in at a provider, where the gateway leads them to it."""
        exchange = [each.app for each in self.sign_in if isinstance(each, Route) and each.path == "/token"]
        if not is_proxied(self.mcp.auth) or not exchange:
            return []
        pages = ProviderPages(views, self.sessions, self.mcp.auth, exchange[0])
        return [
            Route(f"{SIGN_IN}/provider", guarded.open(pages.leave)),
            Route(CONSOLE_BACK.removeprefix(PREFIX), guarded.open(pages.back)),
        ]


@dataclass(frozen=True, slots=True)
class _Guarded:
    """What stands before each page."""

    views: Views
    sessions: Sessions

    def page(self, answer: Page) -> Page:
        """Return a page for whoever has signed in."""

        async def guarded(request: Request) -> ASGIApp:
            if owner_in(request.scope) is not None:
                return await answer(request)
            # Browsers forget a cookie whose time is over; who has a page open was signed in, and comes back to it.
            part = is_fragment(request)
            ended = part or bool(self.sessions.cookie(request.scope))
            page = urlsplit(request.headers.get("hx-current-url", "")).path if part else request.url.path
            where = f"{PREFIX}{SIGN_IN}?{'ended=1&' if ended else ''}next={local_path(page)}"
            if part:
                return Response(status_code=HTTPStatus.UNAUTHORIZED, headers={"HX-Redirect": where})
            if request.method != "GET":
                raise key_needed()
            return RedirectResponse(where, HTTPStatus.SEE_OTHER)

        return self.open(guarded)

    def open(self, answer: Page) -> Page:
        """Return a page whose refusals are shown as such; nothing is changed for pages of others."""

        async def coded(request: Request) -> ASGIApp:
            try:
                if request.method not in {"GET", "HEAD"} and not is_own(request.scope):
                    message, step = "The request is none of this console's pages.", "Use the console's own pages."
                    raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)  # noqa: TRY301
                return await answer(request)
            except RefusedCall as refused:
                return self._refused(request, refused.problem)
            except SandpodError as error:
                return self._refused(request, error.problem().model_dump(mode="json"))
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.BAD_REQUEST)  # nobody reads it
            except Exception:
                logger.exception("A page failed: %s", request.url.path)
                return self._refused(request, BUG.problem().model_dump(mode="json"))

        return coded

    def _refused(self, request: Request, problem: Any) -> Response:
        signed_in = owner_in(request.scope) is not None
        return self.views.refusal(request, problem, ErrorCode(problem["error"]).http_status, signed_in=signed_in)


async def _nothing(_: Request) -> Response:
    message, step = "There is no such page.", "Go to your sandboxes."
    raise SandpodError(ErrorCode.NOT_FOUND, message, next_step=step)


def _frame(views: Views) -> Page:
    async def frame(request: Request) -> Response:
        context = {"script": "pdf_frame.js" if "pdf" in request.query_params else "frame.js"}
        answer = views.answer(request, "frame.html", context, signed_in=False)
        scripts = "'self' 'unsafe-inline'" if "scripts" in request.query_params else "'self'"
        answer.headers["Content-Security-Policy"] = FRAME_POLICY.format(scripts=scripts)
        # The frame's origin is none, so that nothing else here may be read from it.
        answer.headers["Cross-Origin-Opener-Policy"] = "unsafe-none"
        return answer

    return frame
