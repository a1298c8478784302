"""Accepts arguments whose meaning is clear, and answers those that do not fit a tool's schema with a coded refusal.

The values are not repeated: they may be long or secret.
"""

import difflib
from typing import Any, Final

from fastmcp.exceptions import ValidationError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from mcp_types import CallToolRequestParams
from pydantic import ValidationError as PydanticError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.tool_results import refuse
from sandpod_gateway.metrics import Metrics

_ALIASES: Final = (
    ("argv", "args"),
    ("code", "command"),
    ("cmd", "command"),
    ("command", "code"),
    ("content", "text"),
    ("cwd", "path"),
    ("dest", "destination"),
    ("directory", "path"),
    ("dst", "destination"),
    ("env_vars", "env"),
    ("environment", "env"),
    ("file_name", "filename"),
    ("file_path", "path"),
    ("filename", "path"),
    ("filepath", "path"),
    ("folder", "path"),
    ("input", "stdin"),
    ("lang", "language"),
    ("package", "packages"),
    ("requirements", "packages"),
    ("sandbox_id", "sandbox"),
    ("script", "code"),
    ("script", "command"),
    ("session_id", "sandbox"),
    ("source_code", "code"),
    ("src", "source"),
    ("timeout_seconds", "timeout"),
    ("workdir", "cwd"),
    ("working_directory", "cwd"),
)
"""Other names that models give arguments, with what they mean where a tool has that and not the other."""

_UNKNOWN: Final = {"unexpected_keyword_argument", "extra_forbidden"}
_WORDS: Final = {
    "missing": "it is missing",
    "missing_argument": "it is missing",
    "missing_keyword_only_argument": "it is missing",
    "unexpected_keyword_argument": "there is no such argument",
    "extra_forbidden": "there is no such argument",
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
        schema = tool.parameters if tool is not None else {}
        if context.message.arguments:
            _clarify(context.message.arguments, schema.get("properties", {}))
        try:
            return await call_next(context)
        except ValidationError as error:
            if not isinstance(error.__cause__, PydanticError):
                raise
            return refuse(self._metrics, _refusal(error.__cause__, schema))


def _clarify(given: dict[str, Any], takes: dict[str, Any]) -> None:
    """Rename arguments that have another's name, and take away those that are null: they are left out."""
    for alias, name in _ALIASES:
        if alias in given and alias not in takes and name in takes and name not in given:
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
