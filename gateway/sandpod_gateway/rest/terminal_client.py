"""What passes between a terminal and the WebSocket of its client.

What is not acknowledged by the client stays in the sandbox, so that a slow or sleeping client costs nothing here.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.rest.requests import first_ended
from sandpod_gateway.terminals.terminal import Terminal

WINDOW: Final = 256 * 1024  # bytes that may be sent before the client has acknowledged them
DONE: Final = 1000  # of RFC 6455: the connection has served its purpose
_PIECE: Final = 64 * 1024
Size = Annotated[int, Field(ge=1, le=1000)]
Offset = Annotated[int, Field(ge=0, le=2**62)]


class _Message(StrictModel):
    """What a client says."""

    resize: tuple[Size, Size] | None = None  # columns, rows
    ack: Offset | None = None  # bytes that it has got


class TerminalClient:
    """Passes bytes on between a WebSocket and a terminal."""

    def __init__(self, socket: WebSocket, terminal: Terminal, first: asyncio.Future[Message]) -> None:
        """Serve that WebSocket, whose `first` message becomes known there."""
        self._socket, self._terminal, self._first = socket, terminal, first
        self._acked = terminal.output.sent
        self._acks, self._input = asyncio.Event(), asyncio.Event()  # set when there is more
        self._waiting = bytearray()  # input that the terminal has not taken
        self.typed = self.sent = 0  # bytes
        self.stays = True  # whether the terminal waits for its client to come back

    async def serve(self, watch: Callable[[], Coroutine[Any, Any, None]]) -> dict[str, Any] | None:
        """Serve until the client leaves, or the program ends: then return how. `watch` may end it by an error."""
        try:
            received, offset = self._terminal.channel.received, self._terminal.output.sent
            await self._tell(terminal=self._terminal.name, received=received, offset=offset)
            shows = asyncio.ensure_future(self._show())
            async with first_ended(shows, self._receive(), self._type(), watch()) as done:
                for task in done:
                    task.result()
                return shows.result() if shows in done else None
        except (WebSocketDisconnect, RuntimeError):  # the latter where the end is not read yet
            return None  # nobody reads it

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
        came = await self._first
        while True:
            if came["type"] == "websocket.disconnect":
                self.stays = came.get("code") != DONE
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
            came = await self._socket.receive()

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
