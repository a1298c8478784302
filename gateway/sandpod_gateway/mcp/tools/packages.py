"""Packages: installed with the toolset `core`, listed with `sandboxes`."""

from typing import Annotated

from pydantic import Field

from sandpod_gateway.api.results import Installation, PackageList
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.services import Parts
from sandpod_gateway.mcp.toolbox import Toolbox

Wait = Annotated[float, Field(ge=0, le=300, description="Most seconds to wait.")]


def register(toolbox: Toolbox, parts: Parts) -> None:
    """Add the tools."""
    installer = parts.installer

    @toolbox.tool("Install packages", toolset="core", effect="make", result=Installation, open_world=True)
    async def install_packages(
        *,
        packages: arguments.RequiredPackages,
        language: arguments.PackageLanguage = "python",
        sandbox: arguments.Sandbox = None,
        wait: Wait = 30,
    ) -> Installation:
        """Install Python or npm packages in a sandbox. It needs no network: the server fetches them.

        Use it in place of pip and npm. Only wheels are installed, and npm's install scripts are not run.
        """
        return await installer.install(current_owner(), packages, language=language, sandbox=sandbox, wait=wait)

    @toolbox.tool("List packages", toolset="sandboxes", effect="read", result=PackageList)
    async def list_packages(
        *, sandbox: arguments.Sandbox = None, language: arguments.PackageLanguage = "python"
    ) -> PackageList:
        """List a sandbox's packages with versions: installed ones, then those of the image."""
        return await installer.listed(current_owner(), sandbox=sandbox, language=language)
