"""Terminals over WebSockets: binary messages are what is typed and shown, text messages are JSON about it.

What is not acknowledged by the client stays in the sandbox, so that a slow or sleeping client costs nothing here.
"""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastmcp.server.auth import AuthProvider
from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
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
from sandpod_gateway.rest import answers
from sandpod_gateway.rest.key_check import KeyCheck
from sandpod_gateway.rest.operations import PREFIX
from sandpod_gateway.rest.requests import ACTS, need_owner
from sandpod_gateway.terminals.service import TOOL, TerminalRequest, Terminals
from sandpod_gateway.terminals.terminal import Terminal
from sandpod_gateway.usage.amounts import account_of

TERMINAL: Final = "/sandboxes/{sandbox}/terminal"
WEBSOCKETS: Final = re.compile(
    re.escape(PREFIX) + r"/(sandboxes/[^/]+/terminal|runs/[^/]+/events)"
)  # where there is one
WINDOW: Final = 256 * 1024  # bytes that may be sent before the client has acknowledged them
_PIECE: Final = 64 * 1024
_TOOLSET: Final = "core"  # of the tool that does the same
_DONE, _REFUSED, _FAILED = 1000, 1008, 1011  # codes of RFC 6455
_Size = Annotated[int, Field(ge=1, le=1000)]
_Offset = Annotated[int, Field(ge=0, le=2**62)]


class _Query(StrictModel):
    cols: _Size = 80
    rows: _Size = 24
    cwd: str = "."
    command: str = ""
    terminal: str | None = None  # one to go on with
    received: _Offset | None = None  # bytes of it that the client has
    tools: str | None = None


class _Message(StrictModel):
    """What a client says."""

    resize: tuple[_Size, _Size] | None = None  # columns, rows
    ack: _Offset | None = None  # bytes that it has got


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
                await _end(socket, {"error": call.masked(error.problem().model_dump(mode="json"))}, _code_of(error))

    async def _talk(self, request: Request, socket: WebSocket, call: Call, act: Act, held: ExitStack) -> None:
        owner = need_owner(request)
        try:
            await self.audit.begin()
            self.requests.enter(owner)
            held.callback(self.requests.leave, owner, 0)  # once the last message is sent, too
            terminal = await self._open(request, owner)
            act.note(run_id=terminal.name)
            client = _Client(socket, terminal)
            try:
                last = await client.serve(KeyCheck.of(self.auth, request).until_changed)
            finally:
                act.note(bytes_in=client.typed, bytes_out=client.sent)
                await terminal.close(stay=client.stays)
            if last is not None:
                act.note(run_outcome=last["outcome"])
                await _end(socket, call.masked({"exit": last}), _DONE)
        except SandpodError as error:
            note(error=error.code)
            raise

    async def _open(self, request: Request, owner: str) -> Terminal:
        if _TOOLSET not in chosen_toolsets(self.toolsets):
            message, step = "Terminals are off: their toolset is 'core'.", "Ask the administrator for another key."
            raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)
        try:
            query = _Query.model_validate(dict(request.query_params))
        except ValidationError as error:
            name = ".".join(map(str, error.errors()[0]["loc"]))[:64]
            message, step = f"The parameter {name} is wrong.", f"A terminal takes: {', '.join(_Query.model_fields)}."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step) from error
        caller = current_caller()
        self.terminals.sandboxes.meter.call(account_of(caller), caller.key_id)
        name = request.path_params["sandbox"]
        sandbox = None if name.strip().lower() == DEFAULT else name
        if query.terminal is not None:
            return await self.terminals.attach(owner, query.terminal, sandbox=sandbox, received=query.received)
        wanted = TerminalRequest(command=query.command, cwd=query.cwd, cols=query.cols, rows=query.rows)
        return await self.terminals.open(owner, wanted, sandbox=sandbox)


class _Client:
    """Passes bytes on between a WebSocket and a terminal."""

    def __init__(self, socket: WebSocket, terminal: Terminal) -> None:
        self._socket, self._terminal = socket, terminal
        self._acked = terminal.output.sent
        self._acks, self._input = asyncio.Event(), asyncio.Event()  # set when there is more
        self._waiting = bytearray()  # input that the terminal has not taken
        self.typed = self.sent = 0  # bytes
        self.stays = True  # whether the terminal waits for its client to come back

    async def serve(self, watch: Callable[[], Coroutine[Any, Any, None]]) -> dict[str, Any] | None:
        """Serve until the client leaves, or the program ends: then return how. `watch` may end it by an error."""
        tasks: list[asyncio.Future[Any]] = []
        try:
            received, offset = self._terminal.channel.received, self._terminal.output.sent
            await self._tell(terminal=self._terminal.name, received=received, offset=offset)
            shows = asyncio.ensure_future(self._show())
            tasks += [shows, *map(asyncio.ensure_future, (self._receive(), self._type(), watch()))]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return shows.result() if shows in done else None
        except (WebSocketDisconnect, RuntimeError):  # the latter where the end is not read yet
            return None  # nobody reads it
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _show(self) -> dict[str, Any]:
        while True:
            while self._terminal.output.sent - self._acked >= WINDOW:
                self._acks.clear()
                await self._acks.wait()
            data = await self._terminal.read()
            if data:
                self.sent += len(data)
                await self._socket.send_bytes(data)
            elif self._terminal.channel.ended:
                ended = await self._terminal.end()
                # What the client does not have may have to be sent again.
                self.stays = self._acked < self._terminal.output.sent
                return ended.model_dump(mode="json", include={"exit_code", "signal", "outcome", "detail"})

    async def _receive(self) -> None:
        """Take what the client sends until it leaves; one that closes in order wants the terminal no more.

        It never waits for the terminal, which may be waiting for an acknowledgement.
        """
        while True:
            came = await self._socket.receive()
            if came["type"] == "websocket.disconnect":
                self.stays = came.get("code") != _DONE
                return
            if (data := came.get("bytes")) is not None:
                if len(self._waiting) + len(data) > WINDOW:
                    message = f"Over {WINDOW} bytes of input wait for the terminal's program."
                    step = 'Send no more than that after the last {"taken": N}.'
                    raise SandpodError(ErrorCode.RATE_LIMITED, message, next_step=step)
                self._waiting += data
                self._input.set()
            else:
                self._heed(came.get("text") or "")

    async def _type(self) -> None:
        told = 0
        while True:
            self._input.clear()
            while data := bytes(self._waiting[:_PIECE]):
                del self._waiting[:_PIECE]
                await self._terminal.write(data)
                self.typed += len(data)
                if self.typed - told >= _PIECE:
                    told = self.typed
                    await self._tell(taken=self._terminal.channel.received + told)
            await self._input.wait()

    async def _tell(self, **fields: Any) -> None:
        await self._socket.send_text(json.dumps(fields))

    def _heed(self, text: str) -> None:
        try:
            said = _Message.model_validate_json(text)
        except ValidationError as error:
            message, step = "A text message is not understood.", 'Send {"ack": N} or {"resize": [cols, rows]}.'
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step) from error
        if said.resize is not None:
            self._terminal.resize(*said.resize)
        if said.ack is not None:
            self._terminal.got(said.ack)
            self._acked = max(self._acked, said.ack)
            self._acks.set()


def _code_of(error: SandpodError) -> int:
    return _FAILED if error.code.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR else _REFUSED


async def _end(socket: WebSocket, last: dict[str, Any], code: int) -> None:
    try:
        await socket.send_text(json.dumps(last))
        await socket.close(code)
    except (WebSocketDisconnect, RuntimeError):
        return  # it has left
