"""The toolset `contexts`: processes that keep variables between runs."""

from typing import Annotated

from pydantic import Field

from sandpod_gateway.api.run_results import ContextList, ContextRestarted
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.toolbox import Toolbox
from sandpod_gateway.runs.background import BackgroundRuns

RequiredContext = Annotated[str, Field(description="The context's name.")]


def register(toolbox: Toolbox, background: BackgroundRuns) -> None:
    """Add the tools."""

    @toolbox.tool("List contexts", toolset="contexts", effect="read", result=ContextList)
    async def list_contexts(*, sandbox: arguments.Sandbox = None) -> ContextList:
        """List the contexts of a sandbox with their language and state."""
        return await background.list_contexts(current_owner(), sandbox=sandbox)

    @toolbox.tool("Restart a context", toolset="contexts", effect="write", result=ContextRestarted)
    async def restart_context(*, context: RequiredContext, sandbox: arguments.Sandbox = None) -> ContextRestarted:
        """End a context's process: its variables are deleted, and its next use starts a new one. Files stay."""
        return await background.restart_context(current_owner(), context, sandbox=sandbox)
