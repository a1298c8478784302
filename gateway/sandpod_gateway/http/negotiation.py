"""Takes requests to /mcp in the forms in which clients really send them.

Clients differ from the specification: they send the id of an ended session with `initialize`, a version of the
protocol that is newer than the server, or accept JSON alone. What is clear is served, and what is not is refused in a
sentence. The MCP SDK behind it gets what the specification asks for.
"""

from http import HTTPStatus
from typing import Any, Final

import pydantic_core
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, check_accept_headers
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import PROTOCOL_VERSION_META_KEY, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.refusals import JSON, HeldAnswer, refused

_EVENTS: Final = "text/event-stream"
# In the body of a request that negotiates the version itself, and of one whose answer is a stream without end.
_ENVELOPE: Final = PROTOCOL_VERSION_META_KEY.encode()
_LISTEN: Final = b'"subscriptions/listen"'
_LOST: Final = SandpodError(
    ErrorCode.BACKEND_ERROR, "The session ended before its answer.", next_step="Initialize a new session."
)


async def negotiated(app: ASGIApp, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request, of which the body is known, by an app that takes what the specification asks for alone."""
    headers = MutableHeaders(raw=list(scope["headers"]))
    answer = _adapted(headers, body)
    if isinstance(answer, Response):
        await answer(scope, receive, send)
        return
    scope = {**scope, "headers": headers.raw}
    await (_one_answer(app, scope, receive, send) if answer == JSON else app(scope, receive, send))


def _adapted(headers: MutableHeaders, body: bytes) -> str | Response:
    """Change a request's headers; return the answer's media type, or the refusal."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        message, step = "The Content-Type is not JSON.", f"Send Content-Type: {JSON}."
        return _unacceptable(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message, step)
    headers["content-type"] = JSON
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    old = version in {None, *HANDSHAKE_PROTOCOL_VERSIONS}
    unknown = version not in {None, *SUPPORTED_PROTOCOL_VERSIONS}
    if ((old and MCP_SESSION_ID_HEADER in headers) or unknown) and _initializes(body):
        # A new session: it has no id yet, and its version stands in the body.
        del headers[MCP_SESSION_ID_HEADER]
        del headers[MCP_PROTOCOL_VERSION_HEADER]
    elif unknown and _ENVELOPE not in body:
        return _unknown_version(version or "")
    return _answer_type(headers, listens=_LISTEN in body)


def _initializes(body: bytes) -> bool:
    if b'"initialize"' not in body:
        return False
    message = pydantic_core.from_json(body)
    return isinstance(message, dict) and message.get("method") == "initialize"


def _answer_type(headers: MutableHeaders, *, listens: bool) -> str | Response:
    """Return the answer's media type: a stream where the client names it, JSON where it takes that or anything."""
    headers["accept"] = headers.get("accept") or "*/*"
    wants_json, wants_events = check_accept_headers(Request({"type": "http", "headers": headers.raw}))
    streams = wants_events and _EVENTS in headers["accept"].lower()
    if not wants_json or (listens and not streams):
        message = "The Accept header leaves no type to answer with."
        step = f"Send Accept: {JSON}, {_EVENTS}; or {JSON} alone, which gets no progress."
        return _unacceptable(HTTPStatus.NOT_ACCEPTABLE, message, step)
    headers["accept"] = f"{JSON}, {_EVENTS}"
    return _EVENTS if streams else JSON


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

    held = HeldAnswer(send, _is_stream, take)
    await app(scope, receive, held.send)
    if held.start is not None and not answer:
        await refused(_LOST)(scope, receive, send)
    elif held.start is not None:
        headers = MutableHeaders(raw=list(held.start["headers"]))
        headers["content-type"] = JSON
        headers["content-length"] = str(len(answer))
        await send({**held.start, "headers": headers.raw})
        await send({"type": "http.response.body", "body": answer})


def _is_stream(start: Message) -> bool:
    return Headers(raw=start["headers"]).get("content-type", "").startswith(_EVENTS)
