"""Counts and times every message over MCP and every call of a tool, whichever way in it came."""

import asyncio
import time
from typing import Any, Final

from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools.base import ToolResult
from mcp import MCPError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.metrics import UNKNOWN, Metrics, face

METHODS: Final = frozenset(
    {
        *("initialize", "ping", "server/discover", "completion/complete", "logging/setLevel"),
        *("tools/list", "tools/call", "prompts/list", "prompts/get"),
        *("resources/list", "resources/read", "resources/templates/list", "resources/subscribe"),
        *("resources/unsubscribe", "notifications/initialized", "notifications/cancelled"),
        *("notifications/progress", "notifications/roots/list_changed", "subscriptions/listen"),
    }
)
"""Methods that are told apart."""
# Of JSON-RPC and MCP; what else a server may answer with is not ours.
_CODES: Final = frozenset({-32700, -32600, -32601, -32602, -32603, -32800, -32001, -32002, -32020})
_CALL: Final = "tools/call"


class Measuring(Middleware):
    """The first of all middleware, so that it sees how each message ends."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tools: set[str] = set()  # that exist: callers' words are no labels

    async def on_message(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        """Pass a message on."""
        tool = await self._tool(context) if context.method == _CALL else ""
        start, error, code = time.perf_counter(), UNKNOWN, str(ErrorCode.BACKEND_ERROR)
        try:
            result = await call_next(context)
            error, code = "", "ok"
            if isinstance(result, ToolResult) and result.is_error:
                error, code = "tool_error", _code(result)
        except asyncio.CancelledError:
            error, code = "cancelled", str(ErrorCode.CANCELLED)
            raise
        except MCPError as refused:
            error = str(refused.error.code) if refused.error.code in _CODES else UNKNOWN
            raise
        finally:
            seconds, metrics, way = time.perf_counter() - start, self._metrics, face.get()
            if way == "mcp":
                method = context.method if context.method in METHODS else UNKNOWN
                metrics.mcp_seconds.labels(method, tool, error).observe(seconds)
            if tool:
                metrics.tool_calls.labels(tool, way, code if tool != UNKNOWN else str(ErrorCode.NOT_FOUND)).inc()
                metrics.tool_seconds.labels(tool).observe(seconds)
        return result

    async def _tool(self, context: MiddlewareContext[Any]) -> str:
        # What does not fit the protocol comes here as it was sent, and is refused further on.
        name, server = getattr(context.message, "name", UNKNOWN), context.fastmcp_context
        if name in self._tools:
            return str(name)
        if server is None or await server.fastmcp.get_tool(name) is None:
            return UNKNOWN
        self._tools.add(name)
        return str(name)


def _code(result: ToolResult) -> str:
    code = (result.structured_content or {}).get("error")
    return str(code) if code in set(ErrorCode) else UNKNOWN
