"""From results of the gateway to what an MCP client gets: structured content, text for the model, pictures."""

import base64

from fastmcp.tools.base import ToolResult
from mcp_types import ImageContent, TextContent
from pydantic import BaseModel

from sandpod_gateway.files.artifacts import ArtifactAnswer
from sandpod_gateway.mcp.text import text_of
from sandpod_gateway.runs.result import Reading, RunAnswer

Result = BaseModel | RunAnswer | Reading | ArtifactAnswer
"""What a tool's function returns: a model, or one with the pictures that go beside it."""


def tool_result(result: Result, *, is_error: bool = False) -> ToolResult:
    """Return a result as structured content, as text for clients and models that read only that, and pictures."""
    pictures = [] if isinstance(result, BaseModel) else result.pictures
    model = result if isinstance(result, BaseModel) else result.result
    content: list[TextContent | ImageContent] = [TextContent(type="text", text=text_of(model))]
    for picture in pictures:
        data = base64.b64encode(picture.data).decode("ascii")
        content.append(ImageContent(type="image", data=data, mime_type=picture.mime_type))
    return ToolResult(content=content, structured_content=model.model_dump(mode="json"), is_error=is_error)
