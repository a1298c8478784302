"""From results of the gateway to what an MCP client gets: structured content, text for the model, pictures."""

import base64
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, ParamSpec, TypeVar

from fastmcp.tools.base import ToolResult
from mcp_types import ImageContent, ResourceLink, TextContent
from pydantic import BaseModel

from sandpod_gateway.api.results import Artifact, ArtifactList, ErrorCode
from sandpod_gateway.api.run_results import RunOutput, RunResult
from sandpod_gateway.content import Answer, Picture
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.text import SHOWN_FILES, text_of
from sandpod_gateway.metrics import Metrics

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Result = BaseModel | Answer[BaseModel]
"""What a tool's function returns."""

_BUG: Final = SandpodError(
    ErrorCode.BACKEND_ERROR,
    "The server failed; its log says how.",
    next_step="Try again. Report it to the administrator if it happens again.",
)


def tool_result(result: Result, *, is_error: bool = False, link_files: bool = False) -> ToolResult:
    """Return a result as structured content, as text for clients and models that read only that, and pictures.

    With `link_files`, files that the text names are linked too, each in a block of its own.
    """
    answer = Answer(result) if isinstance(result, BaseModel) else result
    model = answer.result
    content: list[TextContent | ImageContent | ResourceLink] = [TextContent(type="text", text=text_of(model))]
    content += images(answer.pictures)
    content += [_link(artifact, artifact.url) for artifact in _files(model) if link_files and artifact.url]
    return ToolResult(content=content, structured_content=model.model_dump(mode="json"), is_error=is_error)


def refuse(metrics: Metrics, error: SandpodError) -> ToolResult:
    """Count a refused call and return its result."""
    metrics.refusals.labels(error.code).inc()
    return tool_result(error.problem(), is_error=True)


def answering(
    function: Callable[P, Awaitable[T]],
    answered: Callable[[T], ToolResult],
    refused: Callable[[SandpodError], ToolResult],
) -> Callable[P, Awaitable[ToolResult]]:
    """Return a function as a tool whose every call gives a result.

    An error that is not ours is a bug: it is logged whole, and the caller gets no word of its text.
    """

    @functools.wraps(function)
    async def tool(*args: P.args, **kwargs: P.kwargs) -> ToolResult:
        try:
            return answered(await function(*args, **kwargs))
        except SandpodError as error:
            return refused(error)
        except Exception:
            logger.exception("A tool failed: %s", function.__name__)
            return refused(_BUG)

    # FastMCP reads types and the docstring from the wrapper; what it returns is not what the function returns. Without
    # a signature of its own it would look through the wrapper, and make a schema of the result that nothing uses.
    tool.__annotations__ = {**function.__annotations__, "return": ToolResult}
    tool.__signature__ = inspect.signature(function).replace(return_annotation=ToolResult)  # type: ignore[attr-defined]
    return tool


def images(pictures: Iterable[Picture]) -> list[ImageContent]:
    """Return pictures as blocks of a result."""
    return [
        ImageContent(type="image", data=base64.b64encode(picture.data).decode("ascii"), mime_type=picture.mime_type)
        for picture in pictures
    ]


def _files(model: BaseModel) -> list[Artifact]:
    """Return the files that a result's text names."""
    if isinstance(model, RunOutput) and model.result is not None:
        model = model.result
    return model.artifacts[:SHOWN_FILES] if isinstance(model, RunResult | ArtifactList) else []


def _link(artifact: Artifact, url: str) -> ResourceLink:
    return ResourceLink(
        type="resource_link", uri=url, name=artifact.path, mime_type=artifact.mime_type, size=artifact.size
    )
