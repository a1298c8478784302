"""A gateway over a fake backend that targets call and send bytes to: started once, on a loop of its own."""

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httpx2
from fastmcp import Client

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.settings import Settings
from support.gateway.peers import ENVELOPE, HEADERS
from support.gateway.server import listening

T = TypeVar("T")

PATIENCE: Final = 20.0
QUIET: Final = 0.05  # seconds without an answer after which a request may be one that is not whole


@dataclass(frozen=True)
class Tool:
    """A tool, and the names of its arguments."""

    name: str
    arguments: tuple[str, ...]


class _Bugs(logging.Handler):
    """Keeps what was logged with an exception: what is no refusal is a bug."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(self.format(record)[-3000:])


class Served:
    """The gateway."""

    HEALTH: Final = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._bugs = _Bugs()
        logging.getLogger().addHandler(self._bugs)
        settings = Settings()
        self._gateway = Gateway(settings, FakeBackend())
        self.run(self._start(settings))

    @staticmethod
    @functools.cache
    def of() -> "Served":
        """Return the one of this process."""
        return Served()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what comes of it, which must not take long."""
        return self._loop.run_until_complete(asyncio.wait_for(work, PATIENCE))

    async def _start(self, settings: Settings) -> None:
        self._address = await self._stack.enter_async_context(listening(self._gateway, settings))
        self._http = await self._stack.enter_async_context(httpx2.AsyncClient(timeout=PATIENCE))
        async with Client(self._gateway.mcp) as client:
            tools = await client.list_tools()
        self.tools = [Tool(each.name, self._names(each)) for each in sorted(tools, key=lambda each: each.name)]

    @staticmethod
    def _names(tool: Any) -> tuple[str, ...]:
        schema = tool.model_dump(by_alias=True)["inputSchema"]
        return (*sorted(schema.get("properties", {})), "no_such_argument")

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return a tool's structured answer, or the protocol's error, to what no library would send."""
        params = {"name": tool, "arguments": arguments, "_meta": ENVELOPE}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        headers = {**HEADERS, "mcp-name": tool, "content-type": "application/json"}
        answer = await self._http.post(f"{self._address}/mcp", content=body, headers=headers)
        assert answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR, answer.text[:500]
        text = answer.text.rpartition("data: ")[2] if "event-stream" in answer.headers["content-type"] else answer.text
        said: dict[str, Any] = json.loads(text)
        found: dict[str, Any] = said.get("result", said).get("structuredContent", said)
        return found

    async def send(self, data: bytes) -> bytes:
        """Return the beginning of what the port answers to these bytes."""
        address = urlsplit(self._address)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        said = b""
        try:
            writer.write(data)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(QUIET if data != self.HEALTH else PATIENCE):
                    await writer.drain()
                    said = await reader.read(4096)
        finally:
            writer.transport.abort()
        return said

    async def _end(self) -> None:
        await self._stack.aclose()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def bugs(self) -> list[str]:
        """Return what was logged of exceptions since the last time."""
        found, self._bugs.found = self._bugs.found, []
        return found

    def close(self) -> None:
        """Stop it."""
        logging.getLogger().removeHandler(self._bugs)
        self._loop.run_until_complete(self._end())
        self._loop.close()
        Served.of.cache_clear()
