"""The app below /api/v1: keys and bounds as for MCP, then each operation at its address."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from cachetools import LRUCache
from fastmcp import FastMCP
from fastmcp.server.http import HostOriginGuardMiddleware, RequestContextMiddleware
from fastmcp.tools.base import ToolResult
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.toolsets import TOOLS
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.audit import RefusedRequests
from sandpod_gateway.http.handshakes import is_foreign, websocket_of
from sandpod_gateway.http.limits import Requests
from sandpod_gateway.http.mcp.transports import standing, toolset_fault, with_key
from sandpod_gateway.http.routes import with_any_name
from sandpod_gateway.http.traces import server_spans
from sandpod_gateway.mcp.tool_results import BUG
from sandpod_gateway.mcp.toolbox import SetTool
from sandpod_gateway.rest import answers
from sandpod_gateway.rest.events import HEADERS, as_stream, run_events, send_events
from sandpod_gateway.rest.files import METHODS, RestFiles
from sandpod_gateway.rest.key_check import KeyCheck
from sandpod_gateway.rest.openapi import describe
from sandpod_gateway.rest.operations import EVENTS, FILE, OPERATIONS, PREFIX, RUNS, STARTED, Operation, program
from sandpod_gateway.rest.pages import Page, is_known, tag_of
from sandpod_gateway.rest.requests import ACTS, need_owner, read_object, while_connected
from sandpod_gateway.rest.terminal import TERMINAL, RestTerminals
from sandpod_gateway.runs.background import BackgroundRuns
from sandpod_telemetry import tracing

logger = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[ASGIApp]]

MAX_DESCRIPTIONS: Final = 64
MAX_DIGITS: Final = 18  # of a cursor
IDEMPOTENCY_KEY: Final = "idempotency-key"
EVENT_STREAM: Final = "text/event-stream"
_FOREIGN: Final = SandpodError(
    ErrorCode.FORBIDDEN,
    "Pages of other sites, and of other ports, get no WebSocket here.",
    next_step="Ask the administrator to allow the page's origin.",
)
_RUN: Final = Operation("POST", RUNS, "")


class Rest:
    """The routes; see `Settings` for what its arguments mean."""

    def __init__(
        self,
        servers: tuple[FastMCP[Any], FastMCP[Any]],
        background: BackgroundRuns,
        requests: Requests,
        files: RestFiles,
        *,
        terminals: RestTerminals,
        version: str,
        ending: asyncio.Event,
    ) -> None:
        self._terminals = terminals
        self._ending = ending
        # By the tools that a caller may use: there are as many as combinations of toolsets.
        self._descriptions: LRUCache[tuple[str, ...], Response] = LRUCache(MAX_DESCRIPTIONS)
        self._files = files
        self._servers = servers  # of MCP's tools, and of the operations that REST alone has
        self._auth = servers[0].auth
        self._background = background
        self._requests = requests
        self._version = version

    def app(self, *, hosts: list[str], origins: list[str] | None, refusals: RefusedRequests) -> ASGIApp:
        """Return the ASGI app."""
        endpoints: dict[str, dict[str, Endpoint]] = {RUNS: {"POST": self._run}, EVENTS: {"GET": self._events}}
        for each in OPERATIONS:
            endpoints.setdefault(each.path, {})[each.method] = partial(self._operate, each)
        endpoints[TERMINAL] = {"GET": self._terminals.answer}
        endpoints[FILE].update(dict.fromkeys(METHODS, self._files.answer))
        routes = [
            # A file's path may hold slashes.
            with_any_name(Route(path.replace("{path}", "{path:path}"), partial(_coded, of), methods=list(of)))
            for path, of in endpoints.items()
        ]
        routes.append(Route("/openapi.json", self._described))
        guard = Middleware(HostOriginGuardMiddleware, allowed_hosts=hosts, allowed_origins=origins, mode="strict")
        signed = self._auth.get_middleware() if self._auth is not None else []
        app = Starlette(
            routes=routes,
            middleware=[*server_spans(), guard, *signed, Middleware(RequestContextMiddleware)],
            exception_handlers={HTTPStatus.NOT_FOUND: _unknown, HTTPStatus.METHOD_NOT_ALLOWED: _not_allowed},
        )

        app.router.redirect_slashes = False  # clients would send their key wherever that leads

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            keyed = {**scope, "headers": with_key(scope["headers"]), ACTS: []}
            refused = refusals.seen(keyed, send)

            async def send_on(message: Message) -> None:
                await (send if keyed[ACTS] else refused)(message)  # what became a call has a record as such

            fault = toolset_fault(QueryParams(scope["query_string"]).getlist(TOOLS))
            if origins is None and is_foreign(keyed):
                fault = _FOREIGN
            await (app if fault is None else answers.refused(fault))(keyed, receive, send_on)

        return serve

    async def _operate(self, operation: Operation, request: Request) -> Response:
        need_owner(request)
        with ExitStack() as held:
            given: dict[str, Any] = dict(request.query_params)
            page = None
            if operation.listing is not None:
                page = Page.asked(operation.listing, given, request.headers.get("accept", ""))
            if operation.has_body:
                given = await read_object(request, self._requests, held)
            if operation.tool == "install_packages" and "wait" not in given:
                given["wait"] = 0
            if operation.tool == "create_sandbox" and IDEMPOTENCY_KEY in request.headers:
                given.setdefault("name", request.headers[IDEMPOTENCY_KEY])  # one name is one sandbox
            result = await self.result(request, operation.tool, {**given, **request.path_params})
            if page is None or result.is_error:
                return answers.answer(result, operation)
            return page.answer(request, dict(result.structured_content or {}))

    async def _run(self, request: Request) -> Response:
        need_owner(request)
        with ExitStack() as held:
            given = await read_object(request, self._requests, held)
            if (key := request.headers.get(IDEMPOTENCY_KEY)) is not None:
                given.setdefault("idempotency_key", key)
            if "respond-async" in request.headers.get("prefer", ""):
                return await self._call(request, STARTED, STARTED.tool, given)
            tool, arguments = program(given)
            return await self._call(request, _RUN, tool, arguments)

    async def _call(self, request: Request, operation: Operation, tool: str, arguments: dict[str, Any]) -> Response:
        return answers.answer(await self.result(request, tool, arguments), operation)

    async def result(self, request: Request, tool: str, arguments: dict[str, Any]) -> ToolResult:
        """Return what a tool returns, here or on the MCP server. Raises SandpodError (not_found): it is off."""
        servers = [each for each in self._servers if isinstance(await each.get_tool(tool), SetTool)]
        if not servers:  # it is off, or another system's of that name
            message, step = f"This server has no operation {tool}.", f"See {PREFIX}/openapi.json for what there is."
            raise SandpodError(ErrorCode.NOT_FOUND, message, next_step=step)
        request.scope[ACTS].append(tool)
        result: ToolResult = await while_connected(request, servers[0].call_tool(tool, arguments))
        return result

    async def _events(self, request: Request) -> ASGIApp:
        owner, run_id = need_owner(request), request.path_params["run_id"]
        last = request.headers.get("last-event-id", request.query_params.get("cursor", "0"))
        if not last.isdecimal() or len(last) > MAX_DIGITS:
            message, step = "The cursor is no whole number.", "Leave it out, or send the id of an event."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
        # As a call, which is counted, recorded and limited as any other.
        found = await self.result(request, "read_run", {"run_id": run_id, "cursor": last, "max_output": 100})
        if found.is_error:
            return answers.answer(found, _RUN)
        if request.method == "HEAD":
            return Response(media_type=EVENT_STREAM, headers=HEADERS)
        events = run_events(self._background, owner, run_id, int(last), KeyCheck.of(self._auth, request).check)
        self._requests.enter(owner)
        socket = websocket_of(request.scope)
        if socket is not None:  # which the server closes when it ends
            return partial(self._counted, owner, partial(send_events, socket, events))
        response = StreamingResponse(as_stream(events), media_type=EVENT_STREAM, headers=HEADERS)
        return partial(self._counted, owner, partial(standing, response, self._ending))

    async def _counted(self, owner: str, answer: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an answer without an end, as one of the caller's requests in progress."""
        try:
            await answer(scope, receive, send)
        finally:
            self._requests.leave(owner, 0)

    async def _described(self, request: Request) -> Response:
        tools = [tool for server in self._servers for tool in await server.list_tools()]
        names = tuple(tool.name for tool in tools)
        if names not in self._descriptions:
            made = JSONResponse(describe(tools, self._version, keyed=self._auth is not None))
            made.headers["ETag"] = tag_of(bytes(made.body))
            self._descriptions[names] = made
        answer = self._descriptions[names]
        if is_known(request.headers, answer.headers["etag"]):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": answer.headers["etag"]})
        return answer


async def _coded(endpoints: Mapping[str, Endpoint], request: Request) -> ASGIApp:
    try:
        method = request.method if request.method in endpoints else "GET"  # HEAD, which has the same answer
        return await endpoints[method](request)
    except SandpodError as error:
        tracing.fail(error.code)
        return answers.refused(error)
    except ClientDisconnect:
        return Response(status_code=HTTPStatus.BAD_REQUEST)  # nobody reads it
    except Exception:
        logger.exception("A request failed: %s", request.url.path)
        return answers.refused(BUG)


async def _unknown(_request: Request, _error: Exception) -> Response:
    step = f"See {PREFIX}/openapi.json for what there is."
    return answers.refused(SandpodError(ErrorCode.NOT_FOUND, "There is nothing at this address.", next_step=step))


async def _not_allowed(request: Request, error: Exception) -> Response:
    allow = getattr(error, "headers", None) or {}
    message, step = f"This address does not take {request.method}.", f"See {PREFIX}/openapi.json for what there is."
    refusal = SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
    return answers.problem(refusal.problem().model_dump(mode="json"), allow, HTTPStatus.METHOD_NOT_ALLOWED)
