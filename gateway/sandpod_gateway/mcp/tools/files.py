"""The tools for files: looking, writing, changing what is there. Called by MCP clients, registered by `server.py`."""

import posixpath
from typing import Annotated, Literal

from fastmcp import FastMCP
from pydantic import Field

from sandpod_gateway.api.results import (
    ErrorCode,
    FileChanged,
    FileContent,
    FileList,
    FileMoved,
    FileStat,
    FileUploaded,
    FileWritten,
)
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.content import decode_base64
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.links import LinkMaker
from sandpod_gateway.files.service import MAX_ENTRIES, MAX_READ, Files, check_filename
from sandpod_gateway.limits import check_text
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.tool_results import answering, output_schema
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

FileName = Annotated[str, Field(description="The file's name, without a folder.")]
Into = Annotated[str, Field(description="Folder to put it into, relative to /workspace; made if it is missing.")]
Source = Annotated[str, Field(description="What to move, relative to /workspace.")]
Destination = Annotated[
    str, Field(description="Where it is to be, its own name included, relative to /workspace; its folder must exist.")
]
WithContent = Annotated[bool, Field(description="Delete a folder with all that is in it.")]

_READ = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
_MAKE = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
_WRITE = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False}


def register(mcp: FastMCP[None], files: Files, links: LinkMaker, metrics: Metrics) -> None:
    """Add the tools to a server."""
    _register_reading(mcp, files, metrics)
    _register_writing(mcp, files, links, metrics)
    _register_changes(mcp, files, metrics)


def _register_reading(mcp: FastMCP[None], files: Files, metrics: Metrics) -> None:
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

    @mcp.tool(annotations={"title": "Look at a file", **_READ}, output_schema=output_schema(FileStat))
    @answering(metrics)
    async def stat_file(*, path: arguments.Path, sandbox: arguments.Sandbox = None) -> FileStat:
        """Return kind, size, time and type of a file or folder. A link is not followed."""
        return await files.stat(current_owner(), path, sandbox=sandbox)


def _register_writing(mcp: FastMCP[None], files: Files, links: LinkMaker, metrics: Metrics) -> None:
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

    @mcp.tool(annotations={"title": "Upload a file", **_WRITE}, output_schema=output_schema(FileUploaded))
    @answering(metrics)
    async def upload_file(
        *,
        filename: FileName,
        content_base64: Base64 = None,
        text: Text = None,
        sandbox: arguments.Sandbox = None,
        path: Into = ".",
        overwrite: Overwrite = False,
    ) -> FileUploaded:
        """Put a file into a sandbox's workspace, from base64 or text.

        Without content it returns a link for HTTP PUT, which takes a large file past the model and replaces one that
        is there.
        """
        check_filename(filename)
        where = posixpath.join(path, filename)
        if text is None and content_base64 is None:
            link = await links.make(current_owner(), where, sandbox=sandbox, method="put", expires=None)
            return FileUploaded(sandbox=link.sandbox, path=link.path, url=link.url, expires_at=link.expires_at)
        data = _content(text, content_base64)
        written = await files.write(current_owner(), where, data, sandbox=sandbox, overwrite=overwrite)
        return FileUploaded(**written.model_dump())


def _register_changes(mcp: FastMCP[None], files: Files, metrics: Metrics) -> None:
    @mcp.tool(annotations={"title": "Make a folder", **_MAKE}, output_schema=output_schema(FileChanged))
    @answering(metrics)
    async def make_directory(*, path: arguments.Path, sandbox: arguments.Sandbox = None) -> FileChanged:
        """Make a folder in a sandbox's workspace, and those on its path. One that is there stays as it is."""
        return await files.make_directory(current_owner(), path, sandbox=sandbox)

    @mcp.tool(annotations={"title": "Move a file", **_WRITE}, output_schema=output_schema(FileMoved))
    @answering(metrics)
    async def move_file(
        *,
        source: Source,
        destination: Destination,
        sandbox: arguments.Sandbox = None,
        overwrite: Overwrite = False,
    ) -> FileMoved:
        """Move or rename a file or folder in a sandbox's workspace."""
        return await files.move(current_owner(), source, destination, sandbox=sandbox, overwrite=overwrite)

    @mcp.tool(annotations={"title": "Delete a file", **_WRITE}, output_schema=output_schema(FileChanged))
    @answering(metrics)
    async def delete_file(
        *, path: arguments.Path, sandbox: arguments.Sandbox = None, recursive: WithContent = False
    ) -> FileChanged:
        """Delete a file, a link or an empty folder of a sandbox's workspace; with `recursive`, a folder that is not."""
        return await files.delete(current_owner(), path, sandbox=sandbox, recursive=recursive)


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
