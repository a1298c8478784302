"""The tools for files: list, read, write. Called by MCP clients, registered by `server.py`."""

from typing import Annotated, Literal

from fastmcp import FastMCP
from pydantic import Field

from sandpod_api.results import ErrorCode, FileContent, FileList, FileWritten
from sandpod_gateway.auth import current_owner
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files import MAX_ENTRIES, MAX_READ, Files, decode_base64
from sandpod_gateway.limits import check_text
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.answers import answering, output_schema
from sandpod_gateway.metrics import Metrics

Folder = Annotated[str, Field(description="Folder to list, relative to /workspace.")]
Recursive = Annotated[bool, Field(description="List what is below its folders too.")]
EntryLimit = Annotated[int, Field(ge=1, le=MAX_ENTRIES, description="Most entries to return.")]
Offset = Annotated[int, Field(ge=0, le=2**62, description="Where to start, in bytes.")]
ReadLimit = Annotated[int, Field(ge=1, description=f"Most bytes to return; {MAX_READ} at most in one call.")]
Encoding = Annotated[
    Literal["utf-8", "base64"] | None,
    Field(description="How to return the content; without it, text as utf-8 and anything else as base64."),
]
Text = Annotated[str | None, Field(description="The content, as text.")]
Base64 = Annotated[str | None, Field(description="The content, as base64, for anything but text.")]
Overwrite = Annotated[bool, Field(description="Replace a file that is there.")]

_READ = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
_WRITE = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False}


def register(mcp: FastMCP[None], files: Files, metrics: Metrics) -> None:
    """Add the tools to a server."""

    @mcp.tool(annotations={"title": "List files", **_READ}, output_schema=output_schema(FileList))
    @answering(metrics)
    async def list_files(
        *,
        path: Folder = ".",
        sandbox: arguments.Sandbox = None,
        recursive: Recursive = False,
        limit: EntryLimit = 1000,
    ) -> FileList:
        """List the files of a sandbox's workspace with size and time. Links are listed, not followed."""
        return await files.list(current_owner(), path, sandbox=sandbox, recursive=recursive, limit=limit)

    @mcp.tool(annotations={"title": "Read a file", **_READ}, output_schema=output_schema(FileContent))
    @answering(metrics)
    async def read_file(
        *,
        path: arguments.Path,
        sandbox: arguments.Sandbox = None,
        offset: Offset = 0,
        limit: ReadLimit = MAX_READ,
        encoding: Encoding = None,
    ) -> FileContent:
        """Read a file of a sandbox's workspace, or a part of it. `truncated` says that there is more to read."""
        span = (offset, limit)
        return await files.read(current_owner(), path, sandbox=sandbox, span=span, encoding=encoding)

    @mcp.tool(annotations={"title": "Write a file", **_WRITE}, output_schema=output_schema(FileWritten))
    @answering(metrics)
    async def write_file(
        *,
        path: arguments.Path,
        text: Text = None,
        content_base64: Base64 = None,
        sandbox: arguments.Sandbox = None,
        overwrite: Overwrite = True,
    ) -> FileWritten:
        """Write a file into a sandbox's workspace, from text or base64. Folders on its path are made."""
        data = _content(text, content_base64)
        return await files.write(current_owner(), path, data, sandbox=sandbox, overwrite=overwrite)


def _content(text: str | None, content_base64: str | None) -> bytes:
    if (text is None) == (content_base64 is None):
        raise SandpodError(
            ErrorCode.INVALID_ARGUMENT,
            "A file's content is either text or content_base64.",
            next_step="Give exactly one of them; an empty text makes an empty file.",
        )
    if text is not None:
        check_text(text, "text")
        return text.encode()
    return decode_base64(content_base64 or "")
