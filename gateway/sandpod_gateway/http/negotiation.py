"""Requests to /mcp in the forms in which clients really send them, and refusals in a form that they can read.

Clients differ from the specification: they send the id of an ended session with `initialize`, a version of the
protocol that is newer than the server, or accept JSON alone. What is clear is served, and what is not is refused as
JSON with a code, a sentence and a next step; so are the refusals of libraries. The MCP SDK behind it gets what the
specification asks for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import pydantic_core
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, check_accept_headers
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import INVALID_REQUEST, PROTOCOL_VERSION_META_KEY, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.api.messages import Refusal
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError

JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
# In the body of a request that negotiates the version itself, and of one whose answer is a stream without end.
_ENVELOPE: Final = PROTOCOL_VERSION_META_KEY.encode()
_LISTEN: Final = b'"subscriptions/listen"'
_MAX_TEXT: Final = 500  # characters of a library's own sentence

_KNOWN: Final = {
    HTTPStatus.FORBIDDEN: (ErrorCode.FORBIDDEN, "Call from an origin of allowed_origins, or without an Origin header."),
    HTTPStatus.NOT_FOUND: (ErrorCode.NOT_FOUND, "Initialize a new session."),
    HTTPStatus.REQUEST_TIMEOUT: (ErrorCode.TIMEOUT, "Send the whole request in time."),
    HTTPStatus.MISDIRECTED_REQUEST: (ErrorCode.INVALID_ARGUMENT, "Use a host name of allowed_hosts."),
}
_KEY_NEEDED: Final = SandpodError(
    ErrorCode.UNAUTHORIZED,
    "A valid API key is needed.",
    next_step="Send it in a header, `Authorization: Bearer KEY` or `X-API-Key: KEY`. There is no sign-in: ask the "
    "administrator for a key.",
)
_SIGN_IN_NEEDED: Final = SandpodError(
    ErrorCode.UNAUTHORIZED,
    "You are not signed in, or not any more.",
    next_step="Sign in with your client, or send an API key: `Authorization: Bearer KEY` or `X-API-Key: KEY`.",
)
_LOST: Final = SandpodError(
    ErrorCode.BACKEND_ERROR, "The session ended before its answer.", next_step="Initialize a new session."
)


def problem(error: SandpodError, *, status: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a refused request of plain HTTP, with the code's own status by default."""
    body = error.problem().model_dump(mode="json")
    if error.retry_after is not None:
        headers = {**(headers or {}), "Retry-After": str(error.retry_after)}
    return JSONResponse(body, status_code=status or error.code.http_status, headers=headers)


def refused(error: SandpodError, *, status: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a request that no MCP session sees, with the code's own status by default."""
    # Without an id: it stands in what was not read.
    body = Refusal(None, INVALID_REQUEST, error.message, error.code, error.next_step).body()
    return Response(body, status_code=status or error.code.http_status, headers=headers, media_type=JSON)


@dataclass(eq=False)
class HeldAnswer:
    """Sends an answer on, or holds it back so that another can be sent in its place."""

    target: Send  # where the answer goes
    holds: Callable[[Message], bool]  # whether an answer is held back, by its first message
    take: Callable[[bytes], None]  # gets the body of one that is, in parts
    start: Message | None = None  # the first message of an answer that is held back

    async def send(self, message: Message) -> None:
        """Take a message of the answer."""
        if message["type"] == "http.response.start" and self.holds(message):
            self.start = message
        elif self.start is None:
            await self.target(message)
        else:
            self.take(message.get("body", b""))


async def coded(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request; a refusal that is not JSON, or is for the key, gets a code, a sentence and a next step."""
    text = bytearray()
    held = HeldAnswer(send, _needs_code, lambda part: text.extend(part[: 4 * _MAX_TEXT - len(text)]))
    await app(scope, receive, held.send)
    if held.start is not None:
        await _with_code(held.start, bytes(text))(scope, receive, send)


def _needs_code(start: Message) -> bool:
    status = start["status"]
    return status >= HTTPStatus.BAD_REQUEST and (status == HTTPStatus.UNAUTHORIZED or not _is_type(JSON, start))


def _is_type(media_type: str, start: Message) -> bool:
    return Headers(raw=start["headers"]).get("content-type", "").startswith(media_type)


def _with_code(start: Message, text: bytes) -> Response:
    headers, status = Headers(raw=start["headers"]), HTTPStatus(start["status"])
    kept = {name: headers[name] for name in ("allow", "retry-after", "connection") if name in headers}
    if status == HTTPStatus.UNAUTHORIZED:
        challenge = headers.get("www-authenticate", "")
        if "resource_metadata=" in challenge:
            return refused(_SIGN_IN_NEEDED, headers={**kept, "www-authenticate": challenge})
        # Without a key, the scheme alone; nothing leads clients into a sign-in that does not exist.
        wrong = ' error="invalid_token"' if "error=" in challenge else ""
        return refused(_KEY_NEEDED, headers={**kept, "www-authenticate": f"Bearer{wrong}"})
    sentence = text.decode(errors="replace")[:_MAX_TEXT].strip().rstrip(".") or status.phrase
    code, step = _KNOWN.get(status, (ErrorCode.INVALID_ARGUMENT, "Correct the request."))
    return refused(SandpodError(code, f"{sentence}.", next_step=step), status=status, headers=kept)


async def negotiated(app: ASGIApp, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request, of which the body is known, by an app that takes what the specification asks for alone."""
    headers = MutableHeaders(raw=list(scope["headers"]))
    headers["accept"] = headers.get("accept") or "*/*"
    wants_json, wants_events = check_accept_headers(Request({"type": "http", "headers": headers.raw}))
    streams = wants_events and _EVENTS in headers["accept"].lower()  # where the client names it
    answer: ASGIApp
    if headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        message, step = "The Content-Type is not JSON.", f"Send Content-Type: {JSON}."
        answer = _unacceptable(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message, step)
    elif not _has_version(headers, body):
        answer = _unknown_version(headers[MCP_PROTOCOL_VERSION_HEADER])
    elif not wants_json or (_LISTEN in body and not streams):
        message = "The Accept header leaves no type to answer with."
        step = f"Send Accept: {JSON}, {_EVENTS}; or {JSON} alone, which gets no progress."
        answer = _unacceptable(HTTPStatus.NOT_ACCEPTABLE, message, step)
    else:
        headers["content-type"], headers["accept"] = JSON, f"{JSON}, {_EVENTS}"
        scope = {**scope, "headers": headers.raw}
        answer = app if streams else partial(_one_answer, app)
    await answer(scope, receive, send)


def _has_version(headers: MutableHeaders, body: bytes) -> bool:
    """Return whether a request's version is known, or negotiated in its body; take away the headers of a session."""
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    old = version in {None, *HANDSHAKE_PROTOCOL_VERSIONS}
    unknown = version not in {None, *SUPPORTED_PROTOCOL_VERSIONS}
    if ((old and MCP_SESSION_ID_HEADER in headers) or unknown) and b'"initialize"' in body:
        message = pydantic_core.from_json(body)
        if isinstance(message, dict) and message.get("method") == "initialize":
            # A new session: it has no id yet, and its version stands in the body.
            del headers[MCP_SESSION_ID_HEADER]
            del headers[MCP_PROTOCOL_VERSION_HEADER]
            return True
    return not unknown or _ENVELOPE in body


def _unacceptable(status: HTTPStatus, message: str, step: str) -> Response:
    return refused(SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step), status=status)


def _unknown_version(version: str) -> Response:
    supported = ", ".join(SUPPORTED_PROTOCOL_VERSIONS)
    error = {
        "code": UNSUPPORTED_PROTOCOL_VERSION,
        "message": f"The version in the header MCP-Protocol-Version is not supported. Send one of {supported}.",
        "data": {"supported": list(SUPPORTED_PROTOCOL_VERSIONS), "requested": version[:64]},
    }
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status_code=HTTPStatus.BAD_REQUEST)


async def _one_answer(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request; of a stream of events, the JSON-RPC response in it is the answer."""
    unread, answer = b"", b""

    def take(part: bytes) -> None:
        nonlocal unread, answer
        *events, unread = (unread + part).split(b"\r\n\r\n")
        for event in events:
            text = b"".join(line[6:] for line in event.split(b"\r\n") if line.startswith(b"data: "))
            message: Any = pydantic_core.from_json(text) if text else None
            if isinstance(message, dict) and "method" not in message:
                answer = text

    held = HeldAnswer(send, partial(_is_type, _EVENTS), take)
    await app(scope, receive, held.send)
    if held.start is not None and not answer:
        await refused(_LOST)(scope, receive, send)
    elif held.start is not None:
        headers = MutableHeaders(raw=list(held.start["headers"]))
        headers["content-type"] = JSON
        headers["content-length"] = str(len(answer))
        await send({**held.start, "headers": headers.raw})
        await send({"type": "http.response.body", "body": answer})
