"""Refusals of HTTP requests as JSON with a code, a sentence and a next step, those of libraries among them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from mcp_types import INVALID_REQUEST
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.api.messages import Refusal
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError

JSON: Final = "application/json"
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


def problem(error: SandpodError, *, status: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a refused request of plain HTTP, with the code's own status by default."""
    body = error.problem().model_dump(mode="json")
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
    if start["status"] < HTTPStatus.BAD_REQUEST:
        return False
    is_json = Headers(raw=start["headers"]).get("content-type", "").startswith(JSON)
    return not is_json or start["status"] == HTTPStatus.UNAUTHORIZED


def _with_code(start: Message, text: bytes) -> Response:
    headers, status = Headers(raw=start["headers"]), HTTPStatus(start["status"])
    kept = {name: headers[name] for name in ("allow", "retry-after", "connection") if name in headers}
    if status == HTTPStatus.UNAUTHORIZED:
        # Without a key, the scheme alone; nothing leads clients into a sign-in that does not exist.
        wrong = ' error="invalid_token"' if "error=" in headers.get("www-authenticate", "") else ""
        return refused(_KEY_NEEDED, headers={**kept, "www-authenticate": f"Bearer{wrong}"})
    sentence = text.decode(errors="replace")[:_MAX_TEXT].strip().rstrip(".") or status.phrase
    code, step = _KNOWN.get(status, (ErrorCode.INVALID_ARGUMENT, "Correct the request."))
    return refused(SandpodError(code, f"{sentence}.", next_step=step), status=status, headers=kept)
