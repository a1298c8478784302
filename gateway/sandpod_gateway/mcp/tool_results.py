"""From results and errors of the gateway to what an MCP client gets. The one translation to the outside.

Called by the tools, through `answering`. An error that is not ours is a bug: it is logged whole, and told without its
text.
"""

import base64
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec

from fastmcp.tools.base import ToolResult
from mcp_types import ImageContent, TextContent
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from sandpod_gateway.api.results import ErrorCode, Problem
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.artifacts import ArtifactAnswer
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.runs.recorder import RunAnswer
from sandpod_gateway.runs.result import Reading

logger = logging.getLogger(__name__)

P = ParamSpec("P")


Result = BaseModel | RunAnswer | Reading | ArtifactAnswer
"""What a tool's function returns: a model, or one with the pictures that go beside it."""


def answer(result: Result, *, is_error: bool = False) -> ToolResult:
    """Return a result as structured content, the same as JSON text for clients that read only that, and pictures."""
    pictures = [] if isinstance(result, BaseModel) else result.pictures
    model = result if isinstance(result, BaseModel) else result.result
    content: list[TextContent | ImageContent] = [TextContent(type="text", text=model.model_dump_json())]
    for picture in pictures:
        data = base64.b64encode(picture.data).decode("ascii")
        content.append(ImageContent(type="image", data=data, mime_type=picture.mime_type))
    return ToolResult(content=content, structured_content=model.model_dump(mode="json"), is_error=is_error)


class _Lean(GenerateJsonSchema):
    """Leaves out what says nothing: clients read these schemas at each call, and models in each conversation."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - as the base class has it
        return False

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Return `type: [x, null]` in place of anyOf where that says the same."""
        inner = self.generate_inner(schema["schema"])
        if isinstance(inner.get("type"), str) and "enum" not in inner:
            return {**inner, "type": [inner["type"], "null"]}
        return super().nullable_schema(schema)


def output_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a tool's answer: its result, or the coded error that takes its place.

    MCP wants an object at the top, and clients check answers against it: so all fields of both are there, and only
    what both have in common (nothing) is required.
    """
    schema = model.model_json_schema(mode="serialization", schema_generator=_Lean)
    problem = Problem.model_json_schema(mode="serialization", schema_generator=_Lean)
    defs = {**schema.get("$defs", {}), **problem.get("$defs", {})}
    properties = {**schema.get("properties", {})}
    for name, field in problem["properties"].items():
        properties.setdefault(name, field)
    merged = {"type": "object", "description": (model.__doc__ or "").strip(), "properties": properties}
    return {**merged, "$defs": defs} if defs else merged


def answering(metrics: Metrics) -> Callable[[Callable[P, Awaitable[Result]]], Callable[P, Awaitable[ToolResult]]]:
    """Return a decorator that makes a tool of a function which returns a result or raises a `SandpodError`."""

    def decorate(function: Callable[P, Awaitable[Result]]) -> Callable[P, Awaitable[ToolResult]]:
        @functools.wraps(function)
        async def tool(*args: P.args, **kwargs: P.kwargs) -> ToolResult:
            try:
                return answer(await function(*args, **kwargs))
            except SandpodError as error:
                problem = error.problem()
            except Exception:
                logger.exception("tool %s failed", function.__name__)
                problem = Problem(
                    error=ErrorCode.BACKEND_ERROR,
                    message="Something went wrong in the server; its log says what.",
                    next="Try again; tell the administrator if it stays.",
                )
            metrics.refusals.labels(problem.error).inc()
            return answer(problem, is_error=True)

        # FastMCP reads types and the docstring from the wrapper; what it returns is not what the function returns.
        tool.__annotations__ = {**function.__annotations__, "return": ToolResult}
        return tool

    return decorate
