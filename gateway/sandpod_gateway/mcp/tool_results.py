"""From results of the gateway to what an MCP client gets: structured content, text for the model, pictures."""

import base64

from fastmcp.tools.base import ToolResult
from mcp_types import ImageContent, ResourceLink, TextContent
from pydantic import BaseModel

from sandpod_gateway.api.results import Artifact, ArtifactList
from sandpod_gateway.api.run_results import RunOutput, RunResult
from sandpod_gateway.files.artifacts import ArtifactAnswer
from sandpod_gateway.mcp.text import SHOWN_FILES, text_of
from sandpod_gateway.runs.result import Reading, RunAnswer

Result = BaseModel | RunAnswer | Reading | ArtifactAnswer
"""What a tool's function returns: a model, or one with the pictures that go beside it."""


def tool_result(result: Result, *, is_error: bool = False, link_files: bool = False) -> ToolResult:
    """Return a result as structured content, as text for clients and models that read only that, and pictures.

    Args:
        result: The result.
        is_error: Whether the call was refused or failed.
        link_files: Whether files that the text names are linked too, each in a block of its own.
    """
    pictures = [] if isinstance(result, BaseModel) else result.pictures
    model = result if isinstance(result, BaseModel) else result.result
    content: list[TextContent | ImageContent | ResourceLink] = [TextContent(type="text", text=text_of(model))]
    for picture in pictures:
        data = base64.b64encode(picture.data).decode("ascii")
        content.append(ImageContent(type="image", data=data, mime_type=picture.mime_type))
    content += [_link(artifact, artifact.url) for artifact in _files(model) if link_files and artifact.url]
    return ToolResult(content=content, structured_content=model.model_dump(mode="json"), is_error=is_error)


def _files(model: BaseModel) -> list[Artifact]:
    """Return the files that a result's text names."""
    if isinstance(model, RunOutput) and model.result is not None:
        model = model.result
    return model.artifacts[:SHOWN_FILES] if isinstance(model, RunResult | ArtifactList) else []


def _link(artifact: Artifact, url: str) -> ResourceLink:
    return ResourceLink(
        type="resource_link", uri=url, name=artifact.path, mime_type=artifact.mime_type, size=artifact.size
    )
