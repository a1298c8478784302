"""A gateway as a caller of its tools sees it: served as `sandpod serve` does, with local sandboxes or with pods."""

import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import httpx2
from fastmcp import Client
from mcp_types import ImageContent

from sandpod_gateway.app import Gateway
from sandpod_gateway.backends.factory import create_backend
from sandpod_gateway.settings import load
from support.cluster.callers import Era
from support.gateway.server import listening
from support.runner.harness import search_path

LOCAL: Final = ("--backend", "local", "--local.warm", "0")
"""Sandboxes of this machine, each started when it is asked for."""
LIBRARIES: Final = (
    *("--local.python", sys.executable),
    *("--local.node", shutil.which("node", path=search_path()) or ""),
)
"""The Python of these tests, which has the libraries that the image has, and the image's Node.js."""


@asynccontextmanager
async def gateway(*flags: str) -> AsyncIterator[str]:
    """Serve in this process, which is much quicker than one of its own; gives the address.

    Args:
        flags: Options of `sandpod serve`; without any, local sandboxes with the image's libraries.
    """
    settings = load([*(flags or (*LOCAL, *LIBRARIES))], config=None, program="sandpod serve")
    backend = create_backend(settings.backend, local=settings.local, kubernetes=settings.kubernetes)
    async with listening(Gateway(settings, backend), settings) as address:
        yield address


class Served:
    """Calls tools of one gateway.

    Args:
        mcp: A connected client.
        http: A client for the rest of what the gateway serves, links above all.

    Attributes:
        pictures: The images of the last answer.
    """

    def __init__(self, mcp: Client[Any], http: httpx2.AsyncClient) -> None:
        self.mcp = mcp
        self.http = http
        self.pictures: list[ImageContent] = []

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Return a tool's result, or its coded refusal."""
        answer = await self.mcp.call_tool(tool, arguments, raise_on_error=False)
        self.pictures = [content for content in answer.content if isinstance(content, ImageContent)]
        content = answer.structured_content
        assert isinstance(content, dict)
        assert answer.is_error == ({"error", "next"} <= content.keys() and "installation" not in content)
        return content

    async def python(self, code: str, **arguments: Any) -> dict[str, Any]:
        return await self.call("run_python_code", code=code, **arguments)

    async def js(self, code: str, **arguments: Any) -> dict[str, Any]:
        return await self.call("run_js_code", code=code, **arguments)

    async def shell(self, command: str, **arguments: Any) -> dict[str, Any]:
        return await self.call("run_shell_command", command=command, **arguments)

    async def close(self) -> None:
        """Close the caller's sandboxes, which the gateway or a cluster would keep for the next test."""
        for sandbox in (await self.call("list_sandboxes"))["sandboxes"]:
            await self.call("close_sandbox", sandbox=sandbox["sandbox"], force=True)


_Caller = TypeVar("_Caller", bound=Served)


@asynccontextmanager
async def connected(address: str, kind: type[_Caller], era: Era = "auto") -> AsyncIterator[_Caller]:
    """Give a caller in one of the protocol's two eras, whose sandboxes are closed afterwards."""
    async with Client(f"{address}/mcp", mode=era) as mcp, httpx2.AsyncClient(base_url=address, timeout=60) as http:
        here = kind(mcp, http)
        try:
            yield here
        finally:
            await here.close()
