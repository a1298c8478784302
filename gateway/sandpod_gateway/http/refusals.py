"""Refusals of HTTP requests as JSON with a code, a sentence and what to do: also those that a library words."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from mcp_types import INVALID_REQUEST
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError

JSON: Final = "application/json"
_MAX_TEXT: Final = 500  # characters of a library's own sentence

_CODES: Final = {
    HTTPStatus.UNAUTHORIZED: ErrorCode.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN: ErrorCode.FORBIDDEN,
    HTTPStatus.NOT_FOUND: ErrorCode.NOT_FOUND,
    HTTPStatus.REQUEST_TIMEOUT: ErrorCode.TIMEOUT,
}
_NEXT_STEPS: Final = {
    HTTPStatus.FORBIDDEN: "Call from an origin of allowed_origins, or without an Origin header.",
    HTTPStatus.NOT_FOUND: "Initialize a new session.",
    HTTPStatus.REQUEST_TIMEOUT: "Send the whole request in time.",
    HTTPStatus.MISDIRECTED_REQUEST: "Use a host name of allowed_hosts.",
}
_KEY_NEEDED: Final = SandpodError(
    ErrorCode.UNAUTHORIZED,
    "A valid API key is needed.",
    next_step="Send it in a header, `Authorization: Bearer KEY` or `X-API-Key: KEY`. There is no sign-in: ask the "
    "administrator for a key.",
)


def refused(
    error: SandpodError, *, status: int | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return the answer to a request that no MCP session sees.

    Args:
        error: Why it is refused.
        status: The HTTP status; the code's own by default.
        headers: Headers of the answer.
    """
    details: dict[str, Any] = {
        "code": INVALID_REQUEST,
        "message": f"{error.message} {error.next_step}",
        "data": error.problem().model_dump(mode="json"),
    }
    return JSONResponse(
        {"jsonrpc": "2.0", "id": None, "error": details},  # the id stands in what was not read
        status_code=status or error.code.http_status,
        headers=dict(headers or {}),
    )


def not_found() -> Response:
    """Return the answer to a request for a path that this server does not have."""
    error = SandpodError(
        ErrorCode.NOT_FOUND, "Nothing is served at this path.", next_step="Connect to /mcp, or to /sse for SSE."
    )
    return JSONResponse(error.problem().model_dump(mode="json"), status_code=HTTPStatus.NOT_FOUND)


class JsonRefusals:
    """Sends an answer on; one that refuses in another form than JSON, or for its key, is worded here.

    Args:
        scope: The request.
        receive: Its body.
        send: Where the answer goes.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._start: Message | None = None
        self._text = b""

    async def send(self, message: Message) -> None:
        """Take a part of the answer."""
        if message["type"] == "http.response.start" and _needs_words(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._text = (self._text + message.get("body", b""))[: 4 * _MAX_TEXT]
            if not message.get("more_body", False):
                await self._worded(self._start)(self._scope, self._receive, self._send)

    def _worded(self, start: Message) -> Response:
        headers, status = Headers(raw=start["headers"]), HTTPStatus(start["status"])
        kept = {name: headers[name] for name in ("allow", "retry-after", "connection") if name in headers}
        if status == HTTPStatus.UNAUTHORIZED:
            # Without a key, the scheme alone; nothing leads clients into a sign-in that does not exist.
            wrong = ' error="invalid_token"' if "error=" in headers.get("www-authenticate", "") else ""
            return refused(_KEY_NEEDED, headers={**kept, "www-authenticate": f"Bearer{wrong}"})
        text = self._text.decode(errors="replace")[:_MAX_TEXT].strip().rstrip(".") or status.phrase
        error = SandpodError(
            _CODES.get(status, ErrorCode.INVALID_ARGUMENT),
            f"{text}.",
            next_step=_NEXT_STEPS.get(status, "Correct the request."),
        )
        return refused(error, status=status, headers=kept)


def _needs_words(start: Message) -> bool:
    if start["status"] < HTTPStatus.BAD_REQUEST:
        return False
    is_json = Headers(raw=start["headers"]).get("content-type", "").startswith(JSON)
    return not is_json or start["status"] == HTTPStatus.UNAUTHORIZED
