"""Records every tool call and every resource that is read, whatever becomes of it.

It is the first middleware, so that no tool can do without: what it records is in the request, in the structured result,
and in what services note on the way.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from fastmcp.exceptions import NotFoundError
from fastmcp.resources import ResourceResult
from fastmcp.server.dependencies import get_http_request
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools.base import ToolResult
from mcp_types import CallToolRequestParams, ContentBlock, ReadResourceRequestParams

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.audit.act import Act, bounded
from sandpod_gateway.audit.log import AuditLog
from sandpod_gateway.auth.callers import facts_of
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import text_size
from sandpod_gateway.mcp.calls import resource_error
from sandpod_gateway.mcp.tool_results import refuse
from sandpod_gateway.metrics import Metrics

# Arguments that hold a program, by any name that it may have, and those that are recorded as they are: what they name
# is no secret. Variables, input and content may be, and are not recorded.
_CODE: Final = ("code", "command", "script", "source_code", "cmd")
_SHOWN: Final = frozenset(
    {
        *("context", "destination", "filename", "installation", "language", "method", "name", "network", "path"),
        *("pool", "run_id", "session_id", "source", "template", "tenant"),
    }
)
_RESULT: Final = {"sandbox": "sandbox", "run_id": "run_id", "outcome": "run_outcome", "installation": "installation"}
_STDIO: Final = "stdio"


class AuditMiddleware(Middleware):
    """Records what passes."""

    def __init__(self, log: AuditLog, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics

    async def on_call_tool(
        self, context: MiddlewareContext[CallToolRequestParams], call_next: CallNext[CallToolRequestParams, Any]
    ) -> Any:
        """Record a call."""
        arguments = context.message.arguments or {}
        code = next((arguments[name] for name in _CODE if isinstance(arguments.get(name), str)), None)
        shown = {name: bounded(value) for name, value in arguments.items() if name in _SHOWN and type(value) is str}
        act = Act("call", who(), code)
        act.note(tool=context.message.name, parameters=shown or None, bytes_in=_size(arguments))
        act.note(language=shown.get("language"))
        async with self._log.recording(act):
            try:
                await self._log.begin()
            except SandpodError as error:
                return refuse(self._metrics, error)
            with _not_found(act):
                result = await call_next(context)
            if isinstance(result, ToolResult):
                act.note(**_facts(result))
            return result

    async def on_read_resource(
        self,
        context: MiddlewareContext[ReadResourceRequestParams],
        call_next: CallNext[ReadResourceRequestParams, ResourceResult],
    ) -> ResourceResult:
        """Record what is read."""
        act = Act("read", who())
        act.note(uri=str(context.message.uri))
        async with self._log.recording(act):
            try:
                await self._log.begin()
            except SandpodError as error:
                raise resource_error(self._metrics, error) from error
            with _not_found(act):
                result = await call_next(context)
            act.note(bytes_out=sum(_size(each.content) for each in result.contents))
            return result


@contextmanager
def _not_found(act: Act) -> Iterator[None]:
    """Note that there is no such tool or resource, where FastMCP says so."""
    try:
        yield
    except NotFoundError:
        act.note(error=ErrorCode.NOT_FOUND)
        raise


def who() -> dict[str, Any]:
    """Return whose call it is, by which key, and where it comes from."""
    facts = facts_of(current_caller())
    try:
        client = get_http_request().client
    except RuntimeError:  # no request over HTTP
        return {**facts, "from": _STDIO}
    return {**facts, "from": client.host if client is not None else "unknown"}


def _facts(result: ToolResult) -> dict[str, Any]:
    facts: dict[str, Any] = {"bytes_out": sum(map(_block_size, result.content))}
    found = result.structured_content or {}
    for name, fact in _RESULT.items():
        if isinstance(found.get(name), str):
            facts[fact] = found[name]
    if result.is_error and isinstance(found.get("error"), str):
        facts["error"] = found["error"]
    return facts


def _block_size(block: ContentBlock) -> int:
    return _size(getattr(block, "text", None)) + _size(getattr(block, "data", None))


def _size(value: Any) -> int:
    """Return the bytes of all texts and data in a value."""
    if isinstance(value, str):
        return text_size(value)
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 0
