"""The tools for artifacts. Called by MCP clients, registered by `server.py`."""

from typing import Annotated

from fastmcp import FastMCP
from pydantic import Field

from sandpod_gateway.api.results import ArtifactContent, ArtifactList
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.files.artifacts import ArtifactAnswer, Artifacts
from sandpod_gateway.files.links import LinkMaker
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.tool_results import answering, output_schema
from sandpod_gateway.metrics import Metrics

Since = Annotated[
    str | None, Field(description="A run's name: only what was created or changed from its beginning on.")
]
ArtifactPath = Annotated[str, Field(description="The artifact's path, as list_artifacts or a run's result tells it.")]

_READ = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}


def register(mcp: FastMCP[None], artifacts: Artifacts, links: LinkMaker, metrics: Metrics) -> None:
    """Add the tools to a server."""

    @mcp.tool(annotations={"title": "List artifacts", **_READ}, output_schema=output_schema(ArtifactList))
    @answering(metrics)
    async def list_artifacts(*, sandbox: arguments.Sandbox = None, since: Since = None) -> ArtifactList:
        """List the files that runs created or changed in a sandbox's workspace, each with a link to download it."""
        listed = await artifacts.list(current_owner(), sandbox=sandbox, since=since)
        return listed.model_copy(update={"artifacts": links.linked(listed.sandbox, listed.artifacts)})

    @mcp.tool(annotations={"title": "Read an artifact", **_READ}, output_schema=output_schema(ArtifactContent))
    @answering(metrics)
    async def read_artifact(*, artifact: ArtifactPath, sandbox: arguments.Sandbox = None) -> ArtifactAnswer:
        """Read a file that a run left: an image as an image, anything else as text or base64 up to a limit."""
        read = await artifacts.read(current_owner(), artifact, sandbox=sandbox)
        url = links.url(read.result.sandbox, read.result.path)
        return ArtifactAnswer(read.result.model_copy(update={"url": url}), read.pictures)
