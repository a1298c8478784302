"""Lists and calls the tools of the chosen toolsets alone. A model pays for each tool in every conversation.

A server's settings, a caller's key and the address that a client connects to (`/mcp?tools=core`) each choose sets. A
tool is listed and works where all of them have it.
"""

from collections.abc import Sequence
from typing import Any, Final

from fastmcp.resources.template import ResourceTemplate
from fastmcp.server.dependencies import get_access_token, get_http_request
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools.base import Tool
from fastmcp.tools.function_tool import FunctionTool
from mcp_types import ReadResourceRequestParams

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.toolsets import ALL, Toolset, expanded
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.calls import Call, Next
from sandpod_gateway.mcp.resources import FILES_TOOLSET, FILES_URI, resource_error
from sandpod_gateway.metrics import Metrics

QUERY: Final = "tools"  # name of the endpoint's query parameter: set names, separated by commas
CLAIM: Final = "tools"  # name of the access token's claim: the set names of the caller's key, or None for all

_FILES: Final = FILES_URI.partition("{")[0]

Listing = MiddlewareContext[Any]


class SetTool(FunctionTool):
    """A tool of a toolset. Tools without one are always listed."""

    toolset: Toolset

    def get_meta(self) -> dict[str, Any]:
        """Return what clients get beside the schema: nothing, since a model pays for it."""
        return {}


class ToolSelection(Middleware):
    """Lists and calls the tools, and reads the resources, of the chosen sets alone."""

    def __init__(self, server: frozenset[str], metrics: Metrics) -> None:
        self._server = server  # the sets that its settings choose
        self._metrics = metrics

    async def on_list_tools(self, context: Listing, call_next: CallNext[Any, Sequence[Tool]]) -> Sequence[Tool]:
        """Leave out the tools of other sets."""
        chosen = chosen_toolsets(self._server)
        return [tool for tool in await call_next(context) if _toolset(tool) in {None, *chosen}]

    async def on_call_tool(self, context: Call, call_next: Next) -> Any:
        """Pass the call on. Raises forbidden, for the tools of other sets."""
        chosen = chosen_toolsets(self._server)
        if chosen != ALL and context.fastmcp_context is not None:
            name = context.message.name
            toolset = _toolset(await context.fastmcp_context.fastmcp.get_tool(name))
            if toolset is not None and toolset not in chosen:
                raise self._off(f"The tool {name}", toolset)
        return await call_next(context)

    async def on_list_resource_templates(
        self, context: Listing, call_next: CallNext[Any, Sequence[ResourceTemplate]]
    ) -> Sequence[ResourceTemplate]:
        """Leave out the files of sandboxes where their tools are off."""
        allowed = FILES_TOOLSET in chosen_toolsets(self._server)
        return [each for each in await call_next(context) if allowed or each.uri_template != FILES_URI]

    async def check_resource_access(self, context: MiddlewareContext[ReadResourceRequestParams]) -> None:
        """Raise ResourceError for the files of sandboxes where their tools are off."""
        if str(context.message.uri).startswith(_FILES) and FILES_TOOLSET not in chosen_toolsets(self._server):
            raise resource_error(self._metrics, self._off("The file resource", FILES_TOOLSET))

    def _off(self, what: str, toolset: str) -> SandpodError:
        way = "ask the administrator for it"
        if toolset in self._server & _of_key():
            way = f"connect to an address that has {QUERY}=core,{toolset}"
        message, step = f"{what} is off: its toolset is {toolset!r}.", f"Use what is listed, or {way}."
        return SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)


def chosen_toolsets(server: frozenset[str]) -> frozenset[str]:
    """Return the sets that this request may use: those that server, key and address all choose."""
    return server & _of_key() & _of_address()


def _toolset(tool: Tool | None) -> str | None:
    return tool.toolset if isinstance(tool, SetTool) else None


def _of_key() -> frozenset[str]:
    token = get_access_token()
    names = token.claims.get(CLAIM) if token is not None else None
    return ALL if names is None else expanded(names)


def _of_address() -> frozenset[str]:
    try:
        texts = get_http_request().query_params.getlist(QUERY)
    except RuntimeError:  # standard input and output
        return ALL
    return ALL.intersection(*(expanded(text.split(",")) for text in texts if text))
