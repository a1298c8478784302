"""People who call the gateway: a key, an address, and plain MCP calls. Called by the tests of this folder and by the
benchmark; it imports nothing of Sandpod, so that it sees what any client sees.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

Era = Literal["auto", "legacy"]


@dataclass(frozen=True)
class Reply:
    """The answer to one call.

    Attributes:
        data: The structured result.
        is_error: Whether the server marked it as an error.
        progress: The texts of the progress notifications, in order.
    """

    data: dict[str, Any]
    is_error: bool
    progress: list[str] = field(default_factory=list)

    @property
    def error(self) -> str | None:
        """The error code, if the call was refused."""
        code = self.data.get("error")
        return code if isinstance(code, str) else None

    def __getitem__(self, name: str) -> Any:
        return self.data[name]


class Session:
    """One connection of one caller."""

    def __init__(self, client: Client[Any]) -> None:
        self.client = client

    async def call(self, tool: str, *, on_output: Any = None, **arguments: Any) -> Reply:
        """Call a tool and return what came back, refusals included.

        Args:
            tool: Its name.
            on_output: Awaited with the text of each progress notification, as it comes.
            arguments: The tool's own.
        """
        texts: list[str] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001  # the names are the protocol's
            texts.append(message or "")
            if on_output is not None:
                await on_output(message or "")

        answer = await self.client.call_tool(tool, arguments, raise_on_error=False, progress_handler=note)
        return Reply(answer.structured_content or {}, answer.is_error, texts)

    async def python(self, code: str, **arguments: Any) -> Reply:
        """Run Python code."""
        return await self.call("run_python_code", code=code, **arguments)

    async def create(self, **arguments: Any) -> str:
        """Create a sandbox and return its handle."""
        reply = await self.call("create_sandbox", **arguments)
        assert not reply.is_error, reply
        handle: str = reply["sandbox"]
        return handle

    async def close(self, sandbox: str) -> Reply:
        """Close a sandbox, whatever runs in it."""
        return await self.call("close_sandbox", sandbox=sandbox, force=True)


@dataclass(frozen=True)
class Caller:
    """Somebody at one address of the gateway.

    Attributes:
        url: The MCP endpoint.
        key: An API key, or None.
        trust: The certificates to trust, or None for the system's.
    """

    url: str
    key: str | None
    trust: ssl.SSLContext | None = None

    @asynccontextmanager
    async def connect(self, era: Era = "auto") -> AsyncIterator[Session]:
        """Open a connection in one of the protocol's two eras."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        transport = StreamableHttpTransport(self.url, headers=headers, verify=self.trust)
        async with Client(transport, mode=era, timeout=120) as client:
            yield Session(client)


@contextmanager
def kept(caller: Caller, **arguments: Any) -> Iterator[str]:
    """Give a sandbox that outlives the connection that made it, and close it afterwards."""

    async def make() -> str:
        async with caller.connect() as session:
            return await session.create(**arguments)

    async def end(handle: str) -> None:
        async with caller.connect() as session:
            await session.close(handle)

    handle = asyncio.run(make())
    yield handle
    asyncio.run(end(handle))
