"""Registers tools: the services that they call, and the decorator that makes one of a function with a result.

A model pays for each schema in every conversation, and some model APIs refuse `anyOf`, `$ref` and boolean forms of
`additionalProperties`. So optional arguments have their type alone (leaving one out means its default), models are
written where they are used, and results are names and types. What a call may contain is checked by the server.
"""

import functools
import string
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, ParamSpec, get_args

from fastmcp import FastMCP
from fastmcp.tools.base import ToolResult
from fastmcp.tools.function_tool import FunctionTool
from mcp_types import ToolAnnotations
from pydantic import BaseModel

from sandpod_gateway.api.toolsets import Toolset
from sandpod_gateway.content import Answer
from sandpod_gateway.files.links import LinkMaker
from sandpod_gateway.files.service import Files
from sandpod_gateway.mcp.tool_results import Result, answering, refuse, tool_result
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.packages.installer import Installer
from sandpod_gateway.runs.activity import Activities
from sandpod_gateway.runs.background import BackgroundRuns
from sandpod_gateway.runs.service import Runs
from sandpod_gateway.sandboxes.service import Sandboxes

P = ParamSpec("P")

Schema = dict[str, Any]
Effect = Literal["read", "make", "write", "run"]

# What a tool does, and the hints that a client gets of it where they are not what the protocol takes for granted.
_HINTS: Final[dict[Effect, dict[str, bool]]] = {
    "read": {"read_only_hint": True, "idempotent_hint": True},
    "make": {"destructive_hint": False},
    "write": {"idempotent_hint": True},
    "run": {},
}
_KEPT: Final = ("type", "description", "enum", "default", "minimum", "maximum")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The gateway's services, as the tools call them."""

    runs: Runs
    background: BackgroundRuns
    activities: Activities
    sandboxes: Sandboxes
    files: Files
    links: LinkMaker
    installer: Installer
    metrics: Metrics


class SetTool(FunctionTool):
    """A tool of a toolset. Tools without one are always listed."""

    toolset: Toolset
    admin: bool = False  # whether it is for administrators alone
    result: type[BaseModel]  # of a call that is not refused

    def get_meta(self) -> dict[str, Any]:
        """Return what clients get in addition to the schema: nothing, since a model pays for it."""
        return {}


@dataclass(frozen=True)
class Toolbox:
    """Adds tools to a server; `facts`, which the settings decide, stand for `$name` in their descriptions."""

    mcp: FastMCP[None]
    parts: Parts
    facts: Mapping[str, str]
    link_files: bool  # whether each file that a result names is linked in a block

    def tool(
        self, title: str, *, toolset: Toolset, effect: Effect, open_world: bool = False, admin: bool = False
    ) -> Callable[[Callable[P, Awaitable[Result]]], Callable[P, Awaitable[ToolResult]]]:
        """Return a decorator that adds a function as a tool, with its name and docstring."""
        annotations = ToolAnnotations(**_HINTS[effect], open_world_hint=None if open_world else False)

        def decorate(function: Callable[P, Awaitable[Result]]) -> Callable[P, Awaitable[ToolResult]]:
            answers = answering(function, self._answered, functools.partial(refuse, self.parts.metrics))
            tool = FunctionTool.from_function(answers, title=title, annotations=annotations)
            returned = function.__annotations__["return"]
            model = next(iter(get_args(returned)), returned)  # of an Answer, too
            fields = {
                "description": string.Template(tool.description or "").substitute(self.facts).strip(),
                "parameters": input_schema(tool.parameters, self.facts),
                "output_schema": output_schema(model),
            }
            self.mcp.add_tool(SetTool(**{**dict(tool), **fields}, toolset=toolset, admin=admin, result=model))
            return answers

        return decorate

    def _answered(self, result: Result) -> ToolResult:
        answer = result if isinstance(result, Answer) else Answer(result)
        linked = Answer(self.parts.links.linked(answer.result), answer.pictures)
        return tool_result(linked, link_files=self.link_files)


def input_schema(schema: Schema, facts: Mapping[str, str]) -> Schema:
    """Return the plain form of what pydantic says of a tool's arguments; `facts` stand for `$name` in descriptions."""
    return _plain(schema, schema.get("$defs", {}), facts)


def _plain(field: Schema, defs: Schema, facts: Mapping[str, str]) -> Schema:
    """Return a schema without null, references and what only a validator needs."""
    merged = {**next((option for option in field.get("anyOf", []) if option.get("type") != "null"), {}), **field}
    if "$ref" in merged:
        merged = {**defs[merged.pop("$ref").rsplit("/", 1)[1]], **merged}
    # What is false unless it is said needs no word.
    plain = {key: merged[key] for key in _KEPT if merged.get(key) is not None and merged[key] is not False}
    if "description" in plain:
        plain["description"] = string.Template(plain["description"]).substitute(facts)
    if "items" in merged:
        plain["items"] = _plain(merged["items"], defs, facts)
    if "properties" in merged:
        plain["properties"] = {name: _plain(each, defs, facts) for name, each in merged["properties"].items()}
    if merged.get("required"):
        plain["required"] = merged["required"]
    if isinstance(extra := merged.get("additionalProperties"), dict):
        plain["additionalProperties"] = _plain(extra, defs, facts)
    return plain


@functools.cache
def output_schema(model: type[BaseModel]) -> Schema:
    """Return the schema of a tool's result: names and types. Nothing is required: a coded error may take its place."""
    schema = model.model_json_schema(mode="serialization")
    defs = schema.get("$defs", {})
    return {"type": "object", "properties": {name: _types(field, defs) for name, field in schema["properties"].items()}}


def _types(field: Schema, defs: Schema) -> Schema:
    if "anyOf" in field:
        kinds = [_types(option, defs)["type"] for option in field["anyOf"]]
        return {"type": [each for kind in kinds for each in (kind if isinstance(kind, list) else [kind])]}
    if "$ref" in field:
        return {"type": defs[field["$ref"].rsplit("/", 1)[1]].get("type", "object")}
    return {"type": field.get("type", "string")}
