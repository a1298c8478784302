"""A gateway as a caller of its tools sees it. Called by the tests of packages, for local sandboxes and for pods."""

from typing import Any

from fastmcp import Client


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
