"""An in-memory stream whose other end is the test: what a runner would send, the test sends."""

import asyncio
from collections.abc import Callable
from typing import Any

from fastmcp import Client

from sandpod_runner.protocol.frames import Decoder, Frame, encode

PATIENCE = 60.0  # seconds that anything may take; nothing waits for it to pass

# What a client of revision 2026-07-28 sends with a call of run_python_code that no library makes.
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
HEADERS = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tools/call",
    "mcp-name": "run_python_code",
}


ACCEPT = {"accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}},
}
PING = {"jsonrpc": "2.0", "id": 2, "method": "ping"}


class ScriptedStream:
    """A `ByteStream` of the gateway's; the test reads its frames and answers them."""

    def __init__(self) -> None:
        self._incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self._frames: asyncio.Queue[Frame] = asyncio.Queue()
        self._decoder = Decoder()
        self.closed = False

    async def read(self) -> bytes:
        return b"" if self.closed else await self._incoming.get()

    async def write(self, data: bytes) -> None:
        if self.closed:
            raise ConnectionError
        for frame in self._decoder.feed(data):
            self._frames.put_nowait(frame)

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._incoming.put_nowait(b"")

    def say(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame as the runner."""
        self._incoming.put_nowait(encode(header, payload))

    def say_raw(self, data: bytes) -> None:
        """Send bytes as the runner; empty ends the stream."""
        self._incoming.put_nowait(data)

    def hello(self, **fields: Any) -> None:
        """Send a runner's hello."""
        languages = {"python": "3.11", "shell": "bash"}
        self.say({"t": "hello", "version": 1, "languages": languages, "memory_limit": None, "runs": [], **fields})

    async def heard(self, kind: str) -> Frame:
        """Return the next frame that the gateway sent, which must be of that kind."""
        frame = await asyncio.wait_for(self._frames.get(), PATIENCE)
        assert frame.kind == kind, frame
        return frame


class Sink:
    """Takes what comes of a run, and keeps all of it."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes]] = []

    def output(self, stream: str, offset: int, data: bytes) -> None:
        assert offset == sum(len(piece) for name, piece in self.got if name == stream)
        self.got.append((stream, data))

    def display(self, mime: str, index: int, data: bytes) -> None:
        self.got.append((f"display {index} {mime}", data))

    def result(self, mime: str, data: bytes) -> None:
        self.got.append((f"result {mime}", data))


async def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; other tasks run meanwhile."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # what is waited for is another task's doing, not an event
            await asyncio.sleep(0)


async def call(client: Client[Any], tool: str, /, **arguments: Any) -> dict[str, Any]:
    """Return the structured content of a tool's answer, a refusal's too; empty where it has none."""
    answer = await client.call_tool(tool, arguments, raise_on_error=False)
    return answer.structured_content or {}
