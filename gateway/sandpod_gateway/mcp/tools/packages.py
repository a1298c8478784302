"""The tools for packages. Called by MCP clients, registered by `server.py`."""

from typing import Annotated

from fastmcp import FastMCP
from pydantic import Field

from sandpod_gateway.api.package_results import Installation, PackageList
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.tool_results import answering, output_schema
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.packages.installer import Installer

LanguageName = Annotated[str, Field(description="Language of the packages: python or javascript (npm).")]
Wait = Annotated[float, Field(ge=0, le=300, description="Seconds to wait for its end.")]
Name = Annotated[str, Field(description="The installation's name, as install_packages returned it.")]

_READ = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
_INSTALL = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True, "openWorldHint": True}


def register(mcp: FastMCP[None], installer: Installer, metrics: Metrics) -> None:
    """Add the tools to a server."""

    @mcp.tool(annotations={"title": "Install packages", **_INSTALL}, output_schema=output_schema(Installation))
    @answering(metrics)
    async def install_packages(
        *,
        packages: arguments.RequiredPackages,
        language: LanguageName = "python",
        sandbox: arguments.Sandbox = None,
        wait: Wait = 5,
    ) -> Installation:
        """Install packages in a sandbox, which needs no network for that: the server gets them.

        Of Python only wheels are installed, and npm packages' own scripts are not run. It goes on when `wait` is over:
        call get_installation until it is not installing.
        """
        return await installer.install(current_owner(), packages, language=language, sandbox=sandbox, wait=wait)

    @mcp.tool(annotations={"title": "Look at an installation", **_READ}, output_schema=output_schema(Installation))
    @answering(metrics)
    async def get_installation(*, installation: Name, wait: Wait = 0) -> Installation:
        """Return how far an installation is, and its packages or why it failed."""
        return await installer.get(current_owner(), installation, wait=wait)

    @mcp.tool(annotations={"title": "List packages", **_READ}, output_schema=output_schema(PackageList))
    @answering(metrics)
    async def list_packages(*, sandbox: arguments.Sandbox = None, language: LanguageName = "python") -> PackageList:
        """List the packages of a sandbox with their versions: those that were installed, then the image's own."""
        return await installer.listed(current_owner(), sandbox=sandbox, language=language)
