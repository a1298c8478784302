"""Toolsets: which tools a caller sees. A model pays for each tool in every conversation, so few are better.

A server's settings, a caller's key and the address that the client connects to (`/mcp?tools=core`) each choose sets;
a tool is listed and works where all of them have it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, get_args

from fastmcp.server.dependencies import get_access_token, get_http_request
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools.base import Tool
from fastmcp.tools.function_tool import FunctionTool
from mcp_types import CallToolRequestParams, ListToolsRequest

from sandpod_gateway.api.results import ErrorCode, Problem
from sandpod_gateway.mcp.tool_results import tool_result
from sandpod_gateway.metrics import Metrics

Toolset = Literal["core", "background", "sandboxes", "files", "links", "contexts"]
ToolsetName = Literal["core", "background", "sandboxes", "files", "links", "contexts", "all"]

ALL: Final[frozenset[str]] = frozenset(get_args(Toolset))

QUERY: Final = "tools"
"""Name of the endpoint's query parameter: set names, separated by commas."""


def expanded(names: Iterable[str]) -> frozenset[str]:
    """Return the sets that the names stand for.

    Raises:
        ValueError: A name is no toolset.
    """
    chosen = {name.strip() for name in names if name.strip()}
    if unknown := chosen - set(get_args(ToolsetName)):
        raise ValueError(f"Unknown toolset: {', '.join(sorted(unknown))[:100]}.")
    return ALL if "all" in chosen else frozenset(chosen)


class SetTool(FunctionTool):
    """A tool of a toolset. Tools without one are always listed."""

    toolset: Toolset

    def get_meta(self) -> dict[str, Any]:
        """Return what clients are told beside the schema: nothing, since a model pays for it."""
        return {}


class ToolSelection(Middleware):
    """Lists and calls the tools of the chosen sets alone.

    Args:
        server: The sets that the server's settings choose.
        metrics: Counts refusals.
    """

    def __init__(self, server: frozenset[str], metrics: Metrics) -> None:
        self._server = server
        self._metrics = metrics

    async def on_list_tools(
        self, context: MiddlewareContext[ListToolsRequest], call_next: CallNext[ListToolsRequest, Sequence[Tool]]
    ) -> Sequence[Tool]:
        """Leave out the tools of other sets."""
        chosen = self.chosen()
        return [tool for tool in await call_next(context) if _toolset(tool) in {None, *chosen}]

    async def on_call_tool(
        self, context: MiddlewareContext[CallToolRequestParams], call_next: CallNext[CallToolRequestParams, Any]
    ) -> Any:
        """Refuse the tools of other sets."""
        if (chosen := self.chosen()) != ALL and context.fastmcp_context is not None:
            tool = await context.fastmcp_context.fastmcp.get_tool(context.message.name)
            toolset = _toolset(tool)
            if toolset is not None and toolset not in chosen:
                self._metrics.refusals.labels(ErrorCode.FORBIDDEN).inc()
                return tool_result(_off(context.message.name, toolset), is_error=True)
        return await call_next(context)

    def chosen(self) -> frozenset[str]:
        """Return the sets that this request may use: those that server, key and address all choose."""
        return self._server & _of_key() & _of_address()


def _toolset(tool: Tool | None) -> str | None:
    return tool.toolset if isinstance(tool, SetTool) else None


def _of_key() -> frozenset[str]:
    token = get_access_token()
    names = token.claims.get("tools") if token is not None else None
    return ALL if names is None else expanded(names)


def _of_address() -> frozenset[str]:
    try:
        text = get_http_request().query_params.get(QUERY)
    except RuntimeError:  # standard input and output
        return ALL
    return ALL if not text else expanded(text.split(","))


def _off(name: str, toolset: str) -> Problem:
    return Problem(
        error=ErrorCode.FORBIDDEN,
        message=f"The tool {name} is off here: its toolset is {toolset!r}.",
        next=f"Use the tools that are listed, or connect to an address with ?{QUERY}=core,{toolset}.",
    )
