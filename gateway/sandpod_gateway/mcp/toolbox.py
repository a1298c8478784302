"""Registers tools: the one decorator that makes an MCP tool of a function which returns a result."""

import functools
import string
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, ParamSpec

from fastmcp import FastMCP
from fastmcp.tools.base import ToolResult
from fastmcp.tools.function_tool import FunctionTool
from mcp_types import ToolAnnotations
from pydantic import BaseModel

from sandpod_gateway.api.toolsets import Toolset
from sandpod_gateway.content import Answer
from sandpod_gateway.files.links import LinkMaker
from sandpod_gateway.mcp.schemas import input_schema, output_schema
from sandpod_gateway.mcp.tool_results import Result, answering, refuse, tool_result
from sandpod_gateway.mcp.toolsets import SetTool
from sandpod_gateway.metrics import Metrics

P = ParamSpec("P")

Effect = Literal["read", "make", "write", "run"]

# What a tool does, and the hints that a client gets of it where they are not what the protocol takes for granted.
_HINTS: Final[dict[Effect, dict[str, bool]]] = {
    "read": {"read_only_hint": True, "idempotent_hint": True},
    "make": {"destructive_hint": False},
    "write": {"idempotent_hint": True},
    "run": {},
}


class Toolbox:
    """Adds tools to a server; `facts`, which the settings decide, stand for `$name` in their descriptions."""

    def __init__(
        self, mcp: FastMCP[None], metrics: Metrics, links: LinkMaker, facts: Mapping[str, str], *, link_files: bool
    ) -> None:
        self._mcp = mcp
        self._links = links
        self._facts = facts
        self._link_files = link_files
        self._refused = functools.partial(refuse, metrics)

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
        """Return a decorator that adds a function as a tool, by default with its own name and docstring."""
        annotations = ToolAnnotations(**_HINTS[effect], open_world_hint=None if open_world else False)

        def decorate(function: Callable[P, Awaitable[Result]]) -> Callable[P, Awaitable[ToolResult]]:
            answers = answering(function, self._answered, self._refused)
            tool = FunctionTool.from_function(
                answers, name=name, title=title, description=description, annotations=annotations
            )
            fields = {
                "description": string.Template(tool.description or "").substitute(self._facts).strip(),
                "parameters": input_schema(tool.parameters, self._facts),
                "output_schema": output_schema(result),
            }
            self._mcp.add_tool(SetTool(**{**dict(tool), **fields}, toolset=toolset))
            return answers

        return decorate

    def _answered(self, result: Result) -> ToolResult:
        answer = result if isinstance(result, Answer) else Answer(result)
        linked = Answer(self._links.linked(answer.result), answer.pictures)
        return tool_result(linked, link_files=self._link_files)
