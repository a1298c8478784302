"""Terminals over WebSockets: binary messages are what is typed and shown, text messages are JSON about it."""

import asyncio
import json
import logging
import re
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastmcp.server.auth import AuthProvider
from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.audit.act import Act, hide, note
from sandpod_gateway.audit.log import AuditLog
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.handshakes import websocket_of
from sandpod_gateway.http.limits import Requests
from sandpod_gateway.masking.current import Call, calling
from sandpod_gateway.mcp.arguments import DEFAULT
from sandpod_gateway.mcp.audit import who
from sandpod_gateway.mcp.calls import chosen_toolsets
from sandpod_gateway.mcp.tool_results import BUG
from sandpod_gateway.rest import answers
from sandpod_gateway.rest.key_check import KeyCheck
from sandpod_gateway.rest.operations import PREFIX
from sandpod_gateway.rest.requests import ACTS, need_owner
from sandpod_gateway.rest.terminal_client import DONE, Offset, Size, TerminalClient
from sandpod_gateway.terminals.service import TOOL, TerminalRequest, Terminals
from sandpod_gateway.terminals.terminal import Terminal
from sandpod_gateway.usage.amounts import account_of

logger = logging.getLogger(__name__)

TERMINAL: Final = "/sandboxes/{sandbox}/terminal"
WEBSOCKETS: Final = re.compile(
    re.escape(PREFIX) + r"/(sandboxes/[^/]+/terminal|runs/[^/]+/events)"
)  # where there is one
_TOOLSET: Final = "core"  # of the tool that does the same
_REFUSED, _FAILED = 1008, 1011  # codes of RFC 6455


class TerminalQuery(StrictModel):
    """What a request says in its query."""

    cols: Annotated[Size, Field(description="Columns.")] = 80
    rows: Annotated[Size, Field(description="Rows.")] = 24
    cwd: Annotated[str, Field(description="Folder that it begins in.")] = "."
    command: Annotated[str, Field(description="What to run in place of a shell.")] = ""
    terminal: Annotated[str | None, Field(description="Name of one to go on with.")] = None
    received: Annotated[Offset | None, Field(description="Bytes of its output that you have.")] = None
    tools: Annotated[str | None, Field(description="Toolsets that the connection may use.")] = None


@dataclass(frozen=True, slots=True)
class RestTerminals:
    """Answers requests for terminals; see `Settings` for `toolsets`."""

    terminals: Terminals
    requests: Requests
    audit: AuditLog
    auth: AuthProvider | None
    toolsets: frozenset[str]

    async def answer(self, request: Request) -> ASGIApp:
        """Return the answer to a request. Raises SandpodError (unauthorized)."""
        need_owner(request)
        socket = websocket_of(request.scope)
        if socket is None:
            message, step = "A terminal is a WebSocket.", "Connect with a WebSocket client."
            body = SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step).problem().model_dump(mode="json")
            return answers.problem(body, {"Upgrade": "websocket"}, HTTPStatus.UPGRADE_REQUIRED)
        request.scope[ACTS].append(TERMINAL)
        return partial(self._serve, request, socket)

    async def _serve(self, request: Request, socket: WebSocket, _scope: Scope, _receive: Receive, _send: Send) -> None:
        await socket.accept()
        act = Act("terminal", who(), request.query_params.get("command"))
        with ExitStack() as held, calling(TOOL) as call:
            hide(call.masked)
            try:
                async with self.audit.recording(act):
                    await self._talk(request, socket, call, act, held)
            except SandpodError as error:
                await _refuse(socket, call, error)
            except WebSocketDisconnect:
                return
            except Exception:
                logger.exception("A terminal failed")
                await _refuse(socket, call, BUG)

    async def _talk(self, request: Request, socket: WebSocket, call: Call, act: Act, held: ExitStack) -> None:
        owner = need_owner(request)
        try:
            await self.audit.begin()
            self.requests.enter(owner)
            held.callback(self.requests.leave, owner, 0)  # once the last message is sent, too
            first = asyncio.ensure_future(socket.receive())
            held.callback(first.cancel)
            terminal = await _unless_left(first, self._open(request, owner))
            act.note(run_id=terminal.name)
            client = TerminalClient(socket, terminal, first)
            try:
                with self.requests.metrics.open_terminals.track_inprogress():
                    last = await client.serve(KeyCheck.of(self.auth, request).until_changed)
            finally:
                act.note(bytes_in=client.typed, bytes_out=client.sent)
                await terminal.close(stay=client.stays)
            if last is not None:
                act.note(run_outcome=last["outcome"])
                await _end(socket, call.masked({"exit": last}), DONE)
        except SandpodError as error:
            note(error=error.code)
            raise

    async def _open(self, request: Request, owner: str) -> Terminal:
        if _TOOLSET not in chosen_toolsets(self.toolsets):
            message, step = "Terminals are off: their toolset is 'core'.", "Ask the administrator for another key."
            raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)
        try:
            query = TerminalQuery.model_validate(dict(request.query_params))
        except ValidationError as error:
            name = ".".join(map(str, error.errors()[0]["loc"]))[:64]
            message, step = (
                f"The parameter {name} is wrong.",
                f"A terminal takes: {', '.join(TerminalQuery.model_fields)}.",
            )
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step) from error
        caller = current_caller()
        self.terminals.sandboxes.meter.call(account_of(caller), caller.key_id)
        name = request.path_params["sandbox"]
        sandbox = None if name.strip().lower() == DEFAULT else name
        if query.terminal is not None:
            return await self.terminals.attach(owner, query.terminal, sandbox=sandbox, received=query.received)
        wanted = TerminalRequest(command=query.command, cwd=query.cwd, cols=query.cols, rows=query.rows)
        return await self.terminals.open(owner, wanted, sandbox=sandbox)


async def _unless_left(first: asyncio.Future[Message], opening: Coroutine[Any, Any, Terminal]) -> Terminal:
    """Return what is opened, unless the client leaves before it says anything. Raises WebSocketDisconnect."""
    task = asyncio.ensure_future(opening)
    try:
        await asyncio.wait((first, task), return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and first.result()["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _refuse(socket: WebSocket, call: Call, error: SandpodError) -> None:
    failed = error.code.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR
    problem = call.masked(error.problem().model_dump(mode="json"))
    await _end(socket, {"error": problem}, _FAILED if failed else _REFUSED)


async def _end(socket: WebSocket, last: dict[str, Any], code: int) -> None:
    try:
        await socket.send_text(json.dumps(last))
        await socket.close(code)
    except (WebSocketDisconnect, RuntimeError):
        return  # it has left
