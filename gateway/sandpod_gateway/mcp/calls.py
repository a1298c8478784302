"""What stands between a request and its tool or resource: bounds, toolsets, and the arguments' meaning.

Calls are bounded over every transport, and not requests: over SSE and stdio a call outlives the request that brings it.
A server's settings, a caller's key and the address that a client connects to (`/mcp?tools=core`) each choose toolsets:
a tool is listed and works where all of them have its set, since a model pays for each tool in every conversation.
Arguments whose meaning is clear are accepted; the values of others are not repeated: they may be long or secret.
"""

import difflib
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from fastmcp.exceptions import ResourceError, ValidationError
from fastmcp.resources.template import ResourceTemplate
from fastmcp.server.dependencies import get_http_request
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools.base import Tool
from mcp_types import CallToolRequestParams, ReadResourceRequestParams
from pydantic import ValidationError as PydanticError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.toolsets import TOOLS, Toolset, expanded
from sandpod_gateway.audit.act import hide
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.masking.current import calling
from sandpod_gateway.mcp.tool_results import count_refusal, mask_result, refuse
from sandpod_gateway.mcp.toolbox import SetTool
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.usage.amounts import account_of
from sandpod_gateway.usage.meter import Meter
from sandpod_telemetry import log_context

Call = MiddlewareContext[CallToolRequestParams]
Listing = MiddlewareContext[Any]

FILES_URI: Final = "sandpod://sandboxes/{sandbox}/files/{path*}"
RETRY_SECONDS: Final = 1
"""Seconds after which a call too many may try again: nobody knows when one ends."""
_FILES_TOOLSET: Final[Toolset] = "core"  # the toolset of read_file, with which the resource is on and off
_FILES: Final = FILES_URI.partition("{")[0]
_ALIASES: Final = {
    "args": ("argv",),
    "code": ("command", "script", "source_code"),
    "command": ("code", "cmd", "script"),
    "cwd": ("workdir", "working_directory"),
    "destination": ("dest", "dst"),
    "env": ("env_vars", "environment"),
    "filename": ("file_name",),
    "language": ("lang",),
    "packages": ("package", "requirements"),
    "path": ("cwd", "directory", "file_path", "filename", "filepath", "folder"),
    "sandbox": ("sandbox_id", "session_id"),
    "source": ("src",),
    "stdin": ("input",),
    "text": ("content",),
    "timeout": ("timeout_seconds",),
}
"""Other names that models give an argument: they mean it where a tool has it and not the other."""

_UNKNOWN: Final = {"unexpected_keyword_argument", "extra_forbidden"}
_WORDS: Final = {
    **dict.fromkeys(("missing", "missing_argument", "missing_keyword_only_argument"), "it is missing"),
    **dict.fromkeys(_UNKNOWN, "there is no such argument"),
    "model_type": "it should be an object",
}


class CallMiddleware(Middleware):
    """Lists, calls and reads what a caller may use, with at most `per_owner` calls of each caller at a time."""

    def __init__(self, per_owner: int, server: frozenset[str], metrics: Metrics, meter: Meter) -> None:
        self._meter = meter
        self._per_owner = per_owner
        self._server = server  # the toolsets that its settings choose
        self._metrics = metrics
        self._calls: Counter[str] = Counter()

    async def on_list_tools(self, context: Listing, call_next: CallNext[Any, Sequence[Tool]]) -> Sequence[Tool]:
        """Leave out the tools of other sets, and for a read-only key all that change something."""
        chosen, read_only = chosen_toolsets(self._server), current_caller().read_only
        tools = [tool for tool in await call_next(context) if _toolset(tool) in {None, *chosen}]
        return [tool for tool in tools if _only_reads(tool)] if read_only else tools

    async def on_call_tool(self, context: Call, call_next: CallNext[CallToolRequestParams, Any]) -> Any:
        """Pass the call on; a refusal becomes a result."""
        with log_context.bound(owner=current_caller().owner), calling(context.message.name) as call:
            hide(call.masked)
            return mask_result(await self._call(context, call_next), call)

    async def _call(self, context: Call, call_next: CallNext[CallToolRequestParams, Any]) -> Any:
        caller = current_caller()
        owner = caller.owner
        if self._calls[owner] >= self._per_owner:
            message = f"You have {self._per_owner} calls in progress, the most for one caller."
            step = "Wait for some of them to end."
            error = SandpodError(ErrorCode.RATE_LIMITED, message, next_step=step, retry_after=RETRY_SECONDS)
            return refuse(self._metrics, error)
        self._calls[owner] += 1
        try:
            self._meter.call(account_of(caller), caller.key_id)
            schema = await self._prepare(context)
            return await call_next(context)
        except SandpodError as refused:
            return refuse(self._metrics, refused)
        except ValidationError as error:
            if not isinstance(error.__cause__, PydanticError):
                raise
            return refuse(self._metrics, _refusal(error.__cause__, schema))
        finally:
            self._calls -= Counter([owner])  # keeps no zeros

    async def _prepare(self, context: Call) -> dict[str, Any]:
        """Correct a call's arguments; return what its tool takes. Raises forbidden, for what the caller may not use."""
        server, name = context.fastmcp_context, context.message.name
        tool = await server.fastmcp.get_tool(name) if server is not None else None
        if tool is not None:
            check_scope(tool, self._server)
        schema = tool.parameters if tool is not None else {}
        if context.message.arguments:
            _clarify(context.message.arguments, schema.get("properties", {}))
        return schema

    async def on_list_resource_templates(
        self, context: Listing, call_next: CallNext[Any, Sequence[ResourceTemplate]]
    ) -> Sequence[ResourceTemplate]:
        """Leave out the files of sandboxes where their tools are off."""
        allowed = _FILES_TOOLSET in chosen_toolsets(self._server)
        return [each for each in await call_next(context) if allowed or each.uri_template != FILES_URI]

    async def check_resource_access(self, context: MiddlewareContext[ReadResourceRequestParams]) -> None:
        """Raise ResourceError for the files of sandboxes where their tools are off, and for too many calls."""
        if str(context.message.uri).startswith(_FILES) and _FILES_TOOLSET not in chosen_toolsets(self._server):
            raise resource_error(self._metrics, _off("The file resource", _FILES_TOOLSET, self._server))
        try:
            self._meter.call(account_of(current_caller()), current_caller().key_id)
        except SandpodError as error:
            raise resource_error(self._metrics, error) from error


def check_scope(tool: Tool, server: frozenset[str]) -> None:
    """Raise forbidden for a tool that this request may not use, of a server whose settings choose these toolsets."""
    if (toolset := _toolset(tool)) not in {None, *chosen_toolsets(server)}:
        raise _off(f"The tool {tool.name}", str(toolset), server)
    if not _only_reads(tool) and current_caller().read_only:
        message, step = f"Your key is read-only, and {tool.name} changes something.", "Use what is listed."
        raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)
    if isinstance(tool, SetTool) and tool.admin and current_caller().role != "admin":
        message, step = f"{tool.name} is for administrators.", "Ask the administrator."
        raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)


def _off(what: str, toolset: str, server: frozenset[str]) -> SandpodError:
    way = "ask the administrator for it"
    if toolset in server & current_caller().tools:
        way = f"connect to an address that has {TOOLS}=core,{toolset}"
    message, step = f"{what} is off: its toolset is {toolset!r}.", f"Use what is listed, or {way}."
    return SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)


def chosen_toolsets(server: frozenset[str]) -> frozenset[str]:
    """Return the sets that this request may use: those that server, key and address all choose."""
    chosen = server & current_caller().tools
    try:
        texts = get_http_request().query_params.getlist(TOOLS)
    except RuntimeError:  # standard input and output
        return chosen
    return chosen.intersection(*(expanded(text.split(",")) for text in texts if text))


def resource_error(metrics: Metrics, error: SandpodError) -> ResourceError:
    """Count a refused resource and return the protocol's error for it."""
    count_refusal(metrics, error)
    return ResourceError(f"{error.code}: {error.message} {error.next_step}", log_level=logging.DEBUG)


def _toolset(tool: Tool | None) -> str | None:
    return tool.toolset if isinstance(tool, SetTool) else None


def _only_reads(tool: Tool) -> bool:
    return tool.annotations is not None and tool.annotations.read_only_hint is True


def _clarify(given: dict[str, Any], takes: dict[str, Any]) -> None:
    """Rename arguments that have another's name, and take away those that are null: they are left out."""
    for name in _ALIASES.keys() & takes.keys() - given.keys():
        if alias := next((alias for alias in _ALIASES[name] if alias in given and alias not in takes), None):
            given[name] = given.pop(alias)
    for name in [name for name, value in given.items() if value is None]:
        del given[name]


def _refusal(error: PydanticError, schema: dict[str, Any]) -> SandpodError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    parts = [str(part) for part in first["loc"]]
    takes = schema.get("properties", {})
    inner = takes.get(parts[0], {}).get("properties") if parts[1:] else None
    parent, takes = (parts[0], inner) if inner else ("The tool", takes)
    name = ".".join(parts)[:100] or "arguments"
    words = _WORDS.get(first["type"], first["msg"][:1].lower() + first["msg"][1:])
    close = difflib.get_close_matches(parts[-1], takes, n=1) if first["type"] in _UNKNOWN else []
    meant = f"Did you mean {close[0]}? " if close else ""
    next_step = f"{meant}{parent} takes: {', '.join(takes)}." if takes else "Correct it and call again."
    return SandpodError(ErrorCode.INVALID_ARGUMENT, f"The argument {name} is wrong: {words}.", next_step=next_step)
