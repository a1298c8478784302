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
from sandpod_gateway.http.refusals import problem, refused

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
    The key moves from where it stands (the query only where that is allowed) to the Authorization header, and out of
    the query, which may be logged.
    """
    path, names = _split(scope["path"])
    if path is None:
        step = "Connect to /mcp, or to /sse for SSE."
        return problem(SandpodError(ErrorCode.NOT_FOUND, "Nothing is served at this path.", next_step=step))
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
        step = "sandpod://capabilities lists the toolsets."
        return refused(SandpodError(ErrorCode.INVALID_ARGUMENT, str(error), next_step=step))
    key = next((value for name, value in query if name == API_KEY), None) if allow_query_key else None
    kept = [(name, value) for name, value in query if name != API_KEY]
    path = scope["path"] if path == MESSAGES_PATH else path  # nobody looks at the rest of a message's path
    return {
        **scope,
        "path": path,
        "raw_path": path.encode(),
        "query_string": urlencode(kept).encode("latin-1"),
        "headers": _with_key(scope["headers"], key),
    }


def keeping(scope: Scope, resolved_scope: Scope, send: Send, *, allow_query_key: bool) -> Send:
    """Return a `send` for an SSE connection that passes the query of its request on to the address of its messages."""
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
    message = f"{path} takes {' or '.join(methods)}."
    error = SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step="Use one of these methods.")
    return refused(error, status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": ", ".join(methods)})


def _with_key(raw: list[tuple[bytes, bytes]], from_query: str | None) -> list[tuple[bytes, bytes]]:
    headers = Headers(raw=raw)
    key = headers.get("x-api-key") or from_query
    if key is None or headers.get("authorization", "").lower().startswith("bearer "):
        return raw
    others = [(name, value) for name, value in raw if name.lower() != b"authorization"]
    return [*others, (b"authorization", b"Bearer " + key.encode("latin-1", "replace"))]
