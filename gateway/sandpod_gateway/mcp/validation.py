"""Turns arguments that do not fit a tool's schema into a coded answer, like any other refusal.

Called by FastMCP as middleware around each tool call. The values are not repeated: they may be long or secret.
"""

import difflib
from typing import Any, Final

from fastmcp.exceptions import ValidationError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools.base import ToolResult
from mcp_types import CallToolRequestParams
from pydantic import ValidationError as PydanticError

from sandpod_gateway.api.results import ErrorCode, Problem
from sandpod_gateway.mcp.tool_results import tool_result
from sandpod_gateway.metrics import Metrics

# Other names that models give arguments, where it is clear what they mean.
_ALIASES: Final = {"content": "text", "cmd": "command", "script": "code", "source_code": "code", "file_path": "path"}

_WORDS = {
    "missing_argument": "it is missing",
    "missing_keyword_only_argument": "it is missing",
    "unexpected_keyword_argument": "the tool has no such argument",
    "model_type": "it should be an object",
}


class BadArguments(Middleware):
    """Answers calls whose arguments are wrong."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def on_call_tool(
        self, context: MiddlewareContext[CallToolRequestParams], call_next: CallNext[CallToolRequestParams, Any]
    ) -> Any:
        """Pass the call on; a refusal of its arguments becomes a result."""
        server = context.fastmcp_context
        tool = await server.fastmcp.get_tool(context.message.name) if server is not None else None
        takes = list(tool.parameters.get("properties", {})) if tool is not None else []
        given = context.message.arguments
        for alias, name in _ALIASES.items():
            if given and alias in given and alias not in takes and name in takes and name not in given:
                given[name] = given.pop(alias)
        try:
            return await call_next(context)
        except ValidationError as error:
            if not isinstance(error.__cause__, PydanticError):
                raise
            self._metrics.refusals.labels(ErrorCode.INVALID_ARGUMENT).inc()
            return _refusal(error.__cause__, takes)


def _refusal(error: PydanticError, takes: list[str]) -> ToolResult:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    name = ".".join(str(part) for part in first["loc"])[:100] or "arguments"
    words = _WORDS.get(first["type"], first["msg"][:1].lower() + first["msg"][1:])
    close = difflib.get_close_matches(name, takes, n=1)
    meant = f"Did you mean {close[0]}? " if close and first["type"] == "unexpected_keyword_argument" else ""
    problem = Problem(
        error=ErrorCode.INVALID_ARGUMENT,
        message=f"The argument {name} is wrong: {words}.",
        next=f"{meant}The tool takes: {', '.join(takes)}." if takes else "Correct it and call again.",
    )
    return tool_result(problem, is_error=True)
