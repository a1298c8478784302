"""A gateway as a caller of its tools sees it, for local sandboxes and for pods; and one with local sandboxes."""

import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastmcp import Client

from sandpod_gateway.app import Gateway
from sandpod_gateway.backends.local.backend import LocalBackend
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.settings import Settings
from support.gateway.server import listening
from support.runner.harness import search_path


@asynccontextmanager
async def local_gateway(workspace_size: str) -> AsyncIterator[str]:
    """Give the address of a gateway whose sandboxes are made on this machine, each when it is asked for."""
    node = shutil.which("node", path=search_path())
    local = LocalSettings(python=sys.executable, node=node, warm=0, workspace_size=workspace_size)
    settings = Settings(backend="local", local=local)
    async with listening(Gateway(settings, LocalBackend(local)), settings) as address:
        yield address


class Served:
    """Calls tools of one gateway.

    Args:
        mcp: A connected client.
    """

    def __init__(self, mcp: Client[Any]) -> None:
        self.mcp = mcp

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return a tool's result, or its coded refusal."""
        answer = await self.mcp.call_tool(tool, arguments, raise_on_error=False)
        assert isinstance(answer.structured_content, dict)
        return answer.structured_content

    async def close(self) -> None:
        """Close the caller's sandboxes, which a cluster would keep for the next test."""
        for sandbox in (await self.call("list_sandboxes"))["sandboxes"]:
            await self.call("close_sandbox", sandbox=sandbox["sandbox"], force=True)
