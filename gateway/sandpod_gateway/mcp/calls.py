"""What stands between a tool call and its tool: a bound on each caller's calls, and the arguments' meaning.

Calls are bounded over every transport, and not requests: over SSE and stdio a call outlives the request that brings it.
Arguments whose meaning is clear are accepted; the values of others are not repeated: they may be long or secret.
"""

import difflib
from collections import Counter
from typing import Any, Final

from fastmcp.exceptions import ValidationError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from mcp_types import CallToolRequestParams
from pydantic import ValidationError as PydanticError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.tool_results import refuse
from sandpod_gateway.metrics import Metrics

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

Call = MiddlewareContext[CallToolRequestParams]
Next = CallNext[CallToolRequestParams, Any]

_UNKNOWN: Final = {"unexpected_keyword_argument", "extra_forbidden"}
_WORDS: Final = {
    **dict.fromkeys(("missing", "missing_argument", "missing_keyword_only_argument"), "it is missing"),
    **dict.fromkeys(_UNKNOWN, "there is no such argument"),
    "model_type": "it should be an object",
}


class BoundedCalls(Middleware):
    """Refuses calls of a caller who has `per_owner` under way, and answers what the other middleware refuses."""

    def __init__(self, per_owner: int, metrics: Metrics) -> None:
        self._per_owner = per_owner
        self._metrics = metrics
        self._calls: Counter[str] = Counter()

    async def on_call_tool(self, context: Call, call_next: Next) -> Any:
        """Pass the call on; a refusal becomes a result."""
        owner = current_owner()
        if self._calls[owner] >= self._per_owner:
            message = f"You have {self._per_owner} calls in progress, the most for one caller."
            error = SandpodError(ErrorCode.RATE_LIMITED, message, next_step="Wait for some of them to end.")
            return refuse(self._metrics, error)
        self._calls[owner] += 1
        try:
            return await call_next(context)
        except SandpodError as refused:
            return refuse(self._metrics, refused)
        finally:
            self._calls[owner] -= 1
            if not self._calls[owner]:
                del self._calls[owner]


class BadArguments(Middleware):
    """Refuses calls whose arguments are wrong."""

    async def on_call_tool(self, context: Call, call_next: Next) -> Any:
        """Pass the call on. Raises invalid_argument."""
        server = context.fastmcp_context
        tool = await server.fastmcp.get_tool(context.message.name) if server is not None else None
        schema = tool.parameters if tool is not None else {}
        if context.message.arguments:
            _clarify(context.message.arguments, schema.get("properties", {}))
        try:
            return await call_next(context)
        except ValidationError as error:
            if not isinstance(error.__cause__, PydanticError):
                raise
            raise _refusal(error.__cause__, schema) from error


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
    parent, schema = _parent(parts, schema)
    takes = list(schema.get("properties", {}))
    name = ".".join(parts)[:100] or "arguments"
    words = _WORDS.get(first["type"], first["msg"][:1].lower() + first["msg"][1:])
    close = difflib.get_close_matches(parts[-1], takes, n=1) if first["type"] in _UNKNOWN else []
    meant = f"Did you mean {close[0]}? " if close else ""
    next_step = f"{meant}{parent or 'The tool'} takes: {', '.join(takes)}." if takes else "Correct it and call again."
    return SandpodError(ErrorCode.INVALID_ARGUMENT, f"The argument {name} is wrong: {words}.", next_step=next_step)


def _parent(parts: list[str], schema: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the argument that an argument is part of, and its schema; the whole tool's where it is part of none."""
    path: list[str] = []
    for part in parts[:-1]:
        inner = schema.get("properties", {}).get(part, {})
        if "properties" not in inner:
            break
        path.append(part)
        schema = inner
    return ".".join(path), schema
