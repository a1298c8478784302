"""What a request's address and headers choose: the transport, toolsets, and where the API key stands."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Scope, Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.toolsets import expanded
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.refusals import not_found, refused

MCP_PATH: Final = "/mcp"
SSE_PATH: Final = "/sse"
MESSAGES_PATH: Final = "/messages/"

TOOLS: Final = "tools"
"""Query parameter: names of toolsets, separated by commas."""
API_KEY: Final = "api_key"
"""Query parameter that holds a key, where the settings allow it."""

_METHODS: Final = {MCP_PATH: ("GET", "POST", "DELETE"), SSE_PATH: ("GET",), MESSAGES_PATH: ("POST",)}


def resolved(scope: Scope, *, allow_query_key: bool) -> Scope | Response:
    """Return a request as the transports take it, or the refusal of one that none of them takes.

    A slash at the end is taken off: a redirect would cost some clients their key. `/mcp/core` is `/mcp?tools=core`.
    The key moves from where it stands to the Authorization header, and out of the query, which may be logged.

    Args:
        scope: The request.
        allow_query_key: Whether a key may stand in the query.
    """
    path, names = _split(scope["path"])
    if path is None:
        return not_found()
    methods = _METHODS[path]
    if scope["method"] not in methods:
        return _wrong_method(path, methods)
    query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    if names is not None:
        query.append((TOOLS, names))
    try:
        for name, value in query:
            if name == TOOLS:
                expanded(value.split(","))
    except ValueError as error:
        problem = SandpodError(
            ErrorCode.INVALID_ARGUMENT, str(error), next_step="sandpod://capabilities lists the toolsets."
        )
        return refused(problem)
    key = next((value for name, value in query if name == API_KEY), None) if allow_query_key else None
    kept = [(name, value) for name, value in query if name != API_KEY]
    # The rest of a message's path is nothing that anybody looks at.
    path = scope["path"] if path == MESSAGES_PATH else path
    return {
        **scope,
        "path": path,
        "raw_path": path.encode(),
        "query_string": urlencode(kept).encode("latin-1"),
        "headers": _with_key(scope["headers"], key),
    }


def keeping(scope: Scope, resolved_scope: Scope, send: Send, *, allow_query_key: bool) -> Send:
    """Return a `send` for an SSE connection that passes its query on to the address of its messages.

    Args:
        scope: The request as it came.
        resolved_scope: The request as the transport takes it.
        send: Where the answer goes.
        allow_query_key: Whether a key may stand in the query.
    """
    query = parse_qsl(resolved_scope["query_string"].decode("latin-1"))
    kept = [(name, value) for name, value in query if name == TOOLS]
    if allow_query_key:
        kept += [(name, value) for name, value in parse_qsl(scope["query_string"].decode("latin-1")) if name == API_KEY]
    added = urlencode(kept).encode("latin-1")
    if not added:
        return send
    done = False

    async def send_on(message: Message) -> None:
        nonlocal done
        if not done and (body := message.get("body")):
            done = True  # the first event says where messages go
            message = {**message, "body": body.replace(b"?session_id=", b"?" + added + b"&session_id=", 1)}
        await send(message)

    return send_on


def _split(path: str) -> tuple[str | None, str | None]:
    """Return the transport's path, and the toolsets that the path names."""
    if path.startswith(MESSAGES_PATH):
        return MESSAGES_PATH, None
    for base in (MCP_PATH, SSE_PATH):
        if path.rstrip("/") == base:
            return base, None
        rest = path.removeprefix(f"{base}/").rstrip("/")
        if rest != path.rstrip("/") and rest.replace(",", "").isalpha():
            return base, rest
    return None, None


def _wrong_method(path: str, methods: Iterable[str]) -> Response:
    words = " or ".join(methods)
    error = SandpodError(ErrorCode.INVALID_ARGUMENT, f"{path} takes {words}.", next_step="Use one of these methods.")
    return refused(error, status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": ", ".join(methods)})


def _with_key(raw: list[tuple[bytes, bytes]], from_query: str | None) -> list[tuple[bytes, bytes]]:
    headers = Headers(raw=raw)
    key = headers.get("x-api-key") or from_query
    if key is None or headers.get("authorization", "").lower().startswith("bearer "):
        return raw
    others = [(name, value) for name, value in raw if name.lower() != b"authorization"]
    return [*others, (b"authorization", b"Bearer " + key.encode("latin-1", "replace"))]
