"""WebSockets: the request that asks for one goes the way of every other request, through the same checks.

Host and Origin, key, limits and refusals are the same so, and a page of another site reaches no WebSocket here. What
answers the request may take the connection over; any other answer refuses it.
"""

import asyncio
import re
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

_KEY: Final = "sandpod.websocket"  # of the request's scope


@dataclass(frozen=True, slots=True)
class Handshakes:
    """Shows the app each request for a WebSocket at one of these paths as a GET request; there are none elsewhere."""

    app: ASGIApp
    paths: re.Pattern[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "websocket":
            await self.app(scope, receive, send)
        elif self.paths.fullmatch(scope["path"]):
            scheme = "https" if scope["scheme"] == "wss" else "http"
            asked = {"type": "http", "method": "GET", "scheme": scheme, _KEY: WebSocket(scope, receive, send)}
            await self.app({**scope, **asked}, _no_body(), _refusing(send))
        else:
            # Other answers may have no end, and would be kept here until they do.
            await send({"type": "websocket.close"})


def websocket_of(scope: Scope) -> WebSocket | None:
    """Return the WebSocket that a request asks for, not accepted yet; None where it asks for none."""
    socket = scope.get(_KEY)
    return socket if isinstance(socket, WebSocket) else None


def is_foreign(scope: Scope) -> bool:
    """Whether a page asks for a WebSocket that did not come from the address that it asks.

    FastMCP's guard lets in pages of any port of this machine. The answers to their other requests a browser withholds
    from them, but not what comes over a WebSocket.
    """
    headers = Headers(scope=scope)
    if websocket_of(scope) is None or "origin" not in headers:
        return False
    return headers["origin"].lower().partition("://")[2] != headers.get("host", "").lower()


def _no_body() -> Receive:
    """Return what gives the request's body, which is empty, and then waits: it can't be seen that a client leaves."""
    messages: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return receive


def _refusing(send: Send) -> Send:
    async def send_on(message: Message) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    return send_on
