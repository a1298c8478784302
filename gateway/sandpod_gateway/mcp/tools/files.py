"""Files and artifacts, read with the toolset `core` and changed with `files`; links to files, with `links`."""

import posixpath
from typing import Annotated, Literal

from pydantic import Field

from sandpod_api.fields import DAY
from sandpod_gateway.api import results
from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.content import Answer, decode_base64
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.links import LinkMaker
from sandpod_gateway.files.paths import check_filename
from sandpod_gateway.files.service import MAX_ENTRIES, MAX_READ, Files
from sandpod_gateway.limits import check_text
from sandpod_gateway.mcp.arguments import Path, Sandbox
from sandpod_gateway.mcp.toolbox import Parts, Toolbox

Folder = Annotated[str, Field(description="Folder, relative to /workspace.")]
Recursive = Annotated[bool, Field(description="Include what is in its subfolders.")]
EntryLimit = Annotated[int, Field(ge=1, le=MAX_ENTRIES, description="Most entries to return.")]
Offset = Annotated[int, Field(ge=0, le=2**62, description="First byte to read.")]
ReadLimit = Annotated[
    int | None, Field(ge=1, description=f"Most bytes to read; default $max_output, at most {MAX_READ}.")
]
Encoding = Annotated[
    Literal["utf-8", "base64"] | None, Field(description="base64 returns the bytes of a file that is not text.")
]
Text = Annotated[str | None, Field(description="The content as text.")]
Base64 = Annotated[str | None, Field(description="The content as base64, for binary files.")]
Overwrite = Annotated[bool, Field(description="Replace an existing file.")]
FileName = Annotated[str, Field(description="The file's name, without a folder.")]
Into = Annotated[str, Field(description="Folder for it, relative to /workspace; created if missing.")]
Source = Annotated[str, Field(description="What to move, relative to /workspace.")]
Destination = Annotated[str, Field(description="Its new path, relative to /workspace, in an existing folder.")]
WithContent = Annotated[bool, Field(description="Delete a folder with everything in it.")]
Since = Annotated[str | None, Field(description="A run_id: only files created or changed since that run began.")]
ArtifactPath = Annotated[str, Field(description="Its path, as a run's result or list_artifacts names it.")]
MethodName = Annotated[Literal["get", "put"], Field(description="get to download the file, put to upload one.")]
Format = Annotated[Literal["tar.gz", "zip"], Field(description="Form of the archive.")]
Expires = Annotated[int | None, Field(ge=1, le=DAY, description="Seconds until the link ends.")]


def register(toolbox: Toolbox, parts: Parts) -> None:
    """Add the tools."""
    _register_reading(toolbox, parts.files)
    _register_writing(toolbox, parts.files, parts.links)
    _register_changes(toolbox, parts.files)
    links = parts.links

    @toolbox.tool("Link to a file", toolset="links", effect="make")
    async def create_link(
        *, path: Path, sandbox: Sandbox = None, method: MethodName = "get", expires: Expires = None
    ) -> results.FileLink:
        """Create a link to download a file, or to upload one by HTTP PUT, past the model. It needs no key.

        It is for this path alone, and ends with the sandbox or your API key at the latest.
        """
        return await links.make(current_owner(), path, sandbox=sandbox, method=method, expires=expires)

    @toolbox.tool("Fetch the workspace", toolset="links", effect="read")
    async def fetch_workspace(*, sandbox: Sandbox = None, format: Format = "tar.gz") -> results.WorkspaceLink:  # noqa: A002
        """Create a link to download all files of /workspace as one archive. It needs no key."""
        return await links.workspace(current_owner(), sandbox=sandbox, form=format)


def _register_reading(toolbox: Toolbox, files: Files) -> None:
    @toolbox.tool("List files", toolset="core", effect="read")
    async def list_files(
        *, path: Folder = ".", sandbox: Sandbox = None, recursive: Recursive = False, limit: EntryLimit = 1000
    ) -> results.FileList:
        """List the files in a folder of /workspace."""
        return await files.list(current_owner(), path, sandbox=sandbox, recursive=recursive, limit=limit)

    @toolbox.tool("Read a file", toolset="core", effect="read")
    async def read_file(
        *, path: Path, sandbox: Sandbox = None, offset: Offset = 0, limit: ReadLimit = None, encoding: Encoding = None
    ) -> results.FileContent:
        """Read a text file in /workspace, or a part of it. For images and other binary files use read_artifact."""
        span = (offset, limit)
        return await files.read(current_owner(), path, sandbox=sandbox, span=span, encoding=encoding)

    @toolbox.tool("Look at a file", toolset="files", effect="read")
    async def stat_file(*, path: Path, sandbox: Sandbox = None) -> results.FileStat:
        """Return the kind, size, time and type of a file or folder. Links are not followed."""
        return await files.stat(current_owner(), path, sandbox=sandbox)


def _register_writing(toolbox: Toolbox, files: Files, links: LinkMaker) -> None:
    @toolbox.tool("Write a file", toolset="core", effect="write")
    async def write_file(
        *,
        path: Path,
        text: Text = None,
        content_base64: Base64 = None,
        sandbox: Sandbox = None,
        overwrite: Overwrite = True,
    ) -> results.FileWritten:
        """Write a file in /workspace from text or base64. Missing folders are created."""
        data = _content(text, content_base64)
        return await files.write(current_owner(), path, data, sandbox=sandbox, overwrite=overwrite)

    @toolbox.tool("Upload a file", toolset="files", effect="write")
    async def upload_file(
        *,
        filename: FileName,
        content_base64: Base64 = None,
        text: Text = None,
        sandbox: Sandbox = None,
        path: Into = ".",
        overwrite: Overwrite = False,
    ) -> results.FileUploaded:
        """Put a file into /workspace from base64 or text; without content, return a link for HTTP PUT.

        The link takes a large file past the model.
        """
        check_filename(filename)
        where = posixpath.join(path, filename)
        if text is None and content_base64 is None:
            link = await links.make(current_owner(), where, sandbox=sandbox, method="put", expires=None)
            return results.FileUploaded(sandbox=link.sandbox, path=link.path, url=link.url, expires_at=link.expires_at)
        data = _content(text, content_base64)
        written = await files.write(current_owner(), where, data, sandbox=sandbox, overwrite=overwrite)
        return results.FileUploaded(**written.model_dump())


def _register_changes(toolbox: Toolbox, files: Files) -> None:
    @toolbox.tool("Make a folder", toolset="files", effect="make")
    async def make_directory(*, path: Path, sandbox: Sandbox = None) -> results.FileChanged:
        """Create a folder in /workspace, and those on its path. An existing one is kept."""
        return await files.make_directory(current_owner(), path, sandbox=sandbox)

    @toolbox.tool("Move a file", toolset="files", effect="write")
    async def move_file(
        *, source: Source, destination: Destination, sandbox: Sandbox = None, overwrite: Overwrite = False
    ) -> results.FileMoved:
        """Move or rename a file or folder in /workspace."""
        return await files.move(current_owner(), source, destination, sandbox=sandbox, overwrite=overwrite)

    @toolbox.tool("Delete a file", toolset="files", effect="write")
    async def delete_file(
        *, path: Path, sandbox: Sandbox = None, recursive: WithContent = False
    ) -> results.FileChanged:
        """Delete a file, a link or an empty folder in /workspace."""
        return await files.delete(current_owner(), path, sandbox=sandbox, recursive=recursive)

    @toolbox.tool("List artifacts", toolset="files", effect="read")
    async def list_artifacts(*, sandbox: Sandbox = None, since: Since = None) -> results.ArtifactList:
        """List the files that runs created or changed in /workspace."""
        return await files.artifacts(current_owner(), sandbox=sandbox, since=since)

    @toolbox.tool("Read an artifact", toolset="core", effect="read")
    async def read_artifact(*, artifact: ArtifactPath, sandbox: Sandbox = None) -> Answer[results.ArtifactContent]:
        """Look at a file that a run left: an image as an image, others as text or base64 up to a limit."""
        return await files.artifact(current_owner(), artifact, sandbox=sandbox)


def _content(text: str | None, content_base64: str | None) -> bytes:
    if (text is None) == (content_base64 is None):
        message = "A file's content is `text` or `content_base64`."
        step = "Send exactly one of them; an empty text makes an empty file."
        raise SandpodError(results.ErrorCode.INVALID_ARGUMENT, message, next_step=step)
    if text is not None:
        check_text(text, "text")
        return text.encode()
    return decode_base64(content_base64 or "")
