"""Registers tools: the one decorator that makes an MCP tool of a function which returns a result.

What a tool's function raises becomes a coded answer here. An error that is not ours is a bug: it is logged whole, and
the caller gets no word of its text.
"""

import functools
import logging
import string
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, ParamSpec

from fastmcp import FastMCP
from fastmcp.tools.base import ToolResult
from fastmcp.tools.function_tool import FunctionTool
from mcp_types import ToolAnnotations
from pydantic import BaseModel

from sandpod_gateway.api.results import ErrorCode, Problem
from sandpod_gateway.api.toolsets import Toolset
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.schemas import input_schema, output_schema
from sandpod_gateway.mcp.tool_results import Result, tool_result
from sandpod_gateway.mcp.toolsets import SetTool
from sandpod_gateway.metrics import Metrics

logger = logging.getLogger(__name__)

P = ParamSpec("P")

Effect = Literal["read", "make", "write", "run"]

# Which hints a client gets for each effect, where they are not what the protocol takes for granted.
_HINTS: Final[dict[Effect, dict[str, bool]]] = {
    "read": {"read_only_hint": True, "idempotent_hint": True},
    "make": {"destructive_hint": False},
    "write": {"idempotent_hint": True},
    "run": {},
}

_BUG: Final = Problem(
    error=ErrorCode.BACKEND_ERROR,
    message="The server failed; its log says how.",
    next="Try again. Report it to the administrator if it happens again.",
)


class Toolbox:
    """Adds tools to a server.

    Args:
        mcp: The server.
        metrics: Counts refusals.
        facts: What stands for `$name` in descriptions: figures and names that the settings decide.
        link_files: Whether files that an answer names are linked in its content.
    """

    def __init__(
        self, mcp: FastMCP[None], metrics: Metrics, facts: Mapping[str, str], *, link_files: bool = False
    ) -> None:
        self.metrics = metrics
        self._link_files = link_files
        self._mcp = mcp
        self._facts = facts

    def tool(
        self,
        title: str,
        *,
        toolset: Toolset,
        effect: Effect,
        result: type[BaseModel],
        name: str | None = None,
        description: str | None = None,
        open_world: bool = False,
    ) -> Callable[[Callable[P, Awaitable[Result]]], Callable[P, Awaitable[ToolResult]]]:
        """Return a decorator that adds a function as a tool.

        Args:
            title: What people see.
            toolset: The set that it is listed with.
            effect: What it does: reads, makes something new, overwrites or ends something, or runs code.
            result: The type of its result.
            name: What it is called; the function's name by default.
            description: What a model reads; the function's docstring by default.
            open_world: Whether it reaches beyond sandboxes.
        """
        annotations = ToolAnnotations(**_HINTS[effect], open_world_hint=None if open_world else False)

        def decorate(function: Callable[P, Awaitable[Result]]) -> Callable[P, Awaitable[ToolResult]]:
            answering = self._answering(function)
            tool = FunctionTool.from_function(
                answering, name=name, title=title, description=description, annotations=annotations
            )
            text = string.Template(tool.description or "").substitute(self._facts).strip()
            fields = {
                "description": text,
                "parameters": input_schema(tool.parameters, self._facts),
                "output_schema": output_schema(result),
            }
            self._mcp.add_tool(SetTool(**{**dict(tool), **fields}, toolset=toolset))
            return answering

        return decorate

    def _answering(self, function: Callable[P, Awaitable[Result]]) -> Callable[P, Awaitable[ToolResult]]:
        @functools.wraps(function)
        async def tool(*args: P.args, **kwargs: P.kwargs) -> ToolResult:
            try:
                return tool_result(await function(*args, **kwargs), link_files=self._link_files)
            except SandpodError as error:
                problem = error.problem()
            except Exception:
                logger.exception("A tool failed: %s", function.__name__)
                problem = _BUG
            self.metrics.refusals.labels(problem.error).inc()
            return tool_result(problem, is_error=True)

        # FastMCP reads types and the docstring from the wrapper; what it returns is not what the function returns.
        tool.__annotations__ = {**function.__annotations__, "return": ToolResult}
        return tool
