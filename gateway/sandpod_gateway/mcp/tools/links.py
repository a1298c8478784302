"""The tools for links to files, for data that should not pass through a model. Registered by `server.py`."""

from typing import Annotated, Literal

from fastmcp import FastMCP
from pydantic import Field

from sandpod_api.fields import DAY
from sandpod_gateway.api.results import FileLink, WorkspaceLink
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.files.links import LinkMaker
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.tool_results import answering, output_schema
from sandpod_gateway.metrics import Metrics

MethodName = Annotated[
    Literal["get", "put"], Field(description="get to download the file, put to upload one there (HTTP PUT).")
]
Expires = Annotated[int | None, Field(ge=1, le=DAY, description="Seconds until the link ends.")]

_MAKE = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False}
_LOOK = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False}


def register(mcp: FastMCP[None], maker: LinkMaker, metrics: Metrics) -> None:
    """Add the tools to a server."""

    @mcp.tool(annotations={"title": "Link to a file", **_MAKE}, output_schema=output_schema(FileLink))
    @answering(metrics)
    async def create_link(
        *,
        path: arguments.Path,
        sandbox: arguments.Sandbox = None,
        method: MethodName = "get",
        expires: Expires = None,
    ) -> FileLink:
        """Make a link to a file of a sandbox, to download it or to upload one past the model: no key is needed.

        It is for this one path, and ends after a while, with the sandbox or with your API key.
        """
        return await maker.make(current_owner(), path, sandbox=sandbox, method=method, expires=expires)

    @mcp.tool(annotations={"title": "Fetch the workspace", **_LOOK}, output_schema=output_schema(WorkspaceLink))
    @answering(metrics)
    async def fetch_workspace(*, sandbox: arguments.Sandbox = None) -> WorkspaceLink:
        """Make a link to download all files of a sandbox's workspace as one tar.gz: no key is needed."""
        return await maker.workspace(current_owner(), sandbox=sandbox)
