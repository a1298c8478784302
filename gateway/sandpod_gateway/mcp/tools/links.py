"""The tools for links to files, for data that should not pass through a model."""

from typing import Annotated, Literal

from pydantic import Field

from sandpod_api.fields import DAY
from sandpod_gateway.api.results import FileLink, WorkspaceLink
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.files.links import LinkMaker
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.toolbox import Toolbox

MethodName = Annotated[Literal["get", "put"], Field(description="get to download the file, put to upload one.")]
Expires = Annotated[int | None, Field(ge=1, le=DAY, description="Seconds until the link ends.")]


def register(toolbox: Toolbox, maker: LinkMaker) -> None:
    """Add the tools."""

    @toolbox.tool("Link to a file", toolset="links", effect="make", result=FileLink)
    async def create_link(
        *,
        path: arguments.Path,
        sandbox: arguments.Sandbox = None,
        method: MethodName = "get",
        expires: Expires = None,
    ) -> FileLink:
        """Create a link to download a file, or to upload one by HTTP PUT, past the model. It needs no key.

        It is for this path alone, and ends with the sandbox or your API key at the latest.
        """
        return await maker.make(current_owner(), path, sandbox=sandbox, method=method, expires=expires)

    @toolbox.tool("Fetch the workspace", toolset="links", effect="read", result=WorkspaceLink)
    async def fetch_workspace(*, sandbox: arguments.Sandbox = None) -> WorkspaceLink:
        """Create a link to download all files of /workspace as one tar.gz. It needs no key."""
        return await maker.workspace(current_owner(), sandbox=sandbox)
