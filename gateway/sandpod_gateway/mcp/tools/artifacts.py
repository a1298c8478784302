"""Artifacts: read with the toolset `core`, listed with `files`."""

from typing import Annotated

from pydantic import Field

from sandpod_gateway.api.results import ArtifactContent, ArtifactList
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.files.artifacts import ArtifactAnswer, Artifacts
from sandpod_gateway.files.links import LinkMaker
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.toolbox import Toolbox

Since = Annotated[str | None, Field(description="A run_id: only files created or changed since that run began.")]
ArtifactPath = Annotated[str, Field(description="Its path, as a run's result or list_artifacts names it.")]


def register(toolbox: Toolbox, artifacts: Artifacts, links: LinkMaker) -> None:
    """Add the tools."""

    @toolbox.tool("List artifacts", toolset="files", effect="read", result=ArtifactList)
    async def list_artifacts(*, sandbox: arguments.Sandbox = None, since: Since = None) -> ArtifactList:
        """List the files that runs created or changed in /workspace."""
        listed = await artifacts.list(current_owner(), sandbox=sandbox, since=since)
        return listed.model_copy(update={"artifacts": links.linked(listed.sandbox, listed.artifacts)})

    @toolbox.tool("Read an artifact", toolset="core", effect="read", result=ArtifactContent)
    async def read_artifact(*, artifact: ArtifactPath, sandbox: arguments.Sandbox = None) -> ArtifactAnswer:
        """Look at a file that a run left: an image as an image, others as text or base64 up to a limit."""
        read = await artifacts.read(current_owner(), artifact, sandbox=sandbox)
        url = links.url(read.result.sandbox, read.result.path)
        return ArtifactAnswer(read.result.model_copy(update={"url": url}), read.pictures)
