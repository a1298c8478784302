"""A client of a terminal over a WebSocket, as a program or a page is one."""

import asyncio
import contextlib
import json
import re
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

PATIENCE = 60.0
"""Seconds after which a test that waits has failed."""


class TerminalClient:
    """One WebSocket; `got` is all that was shown over it."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.said: list[dict[str, Any]] = []  # text messages
        self.got = bytearray()
        self.acks = True  # whether what comes is acknowledged
        self.every = 1  # after so many bytes
        self.begin = 0  # bytes that came over earlier ones
        self._looked = self._acked = 0

    @property
    def received(self) -> int:
        return self.begin + len(self.got)

    @property
    def seen(self) -> bytes:
        """What `until` has looked at; more may have come."""
        return bytes(self.got[: self._looked])

    async def say(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def type(self, text: str) -> None:
        await self.socket.send(text.encode())

    async def take(self) -> dict[str, Any] | None:
        """Take the next message, and return it if it is a text."""
        came = await asyncio.wait_for(self.socket.recv(), PATIENCE)
        if isinstance(came, str):
            self.said.append(json.loads(came))
            return self.said[-1]
        self.got += came
        if self.acks and self.received - self._acked >= self.every:
            self._acked = self.received
            with contextlib.suppress(ConnectionClosed):  # what came before that is still to be taken
                await self.say(ack=self.received)
        return None

    async def until(self, pattern: str) -> str:
        """Return what is shown up to a text that matches."""
        while (found := re.compile(pattern.encode()).search(self.got, self._looked)) is None:
            said = await self.take()
            assert said is None or "taken" in said, (said, bytes(self.got))
        start, self._looked = self._looked, found.end()
        return self.got[start : found.end()].decode(errors="replace")

    async def run(self, command: str) -> str:
        """Type a command into a shell, and return what it says."""
        mark = secrets.token_hex(4)
        told = f"echo {mark[:4]}''{mark[4:]}"  # which does not read so where it is typed
        await self.type(f"{told}; {command}; {told}\n")
        await self.until(mark)
        return (await self.until(mark)).removesuffix(mark).strip()

    async def last(self) -> tuple[dict[str, Any] | None, int]:
        """Take all that comes until it is closed; return the last text message, and the code."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.take()
        assert self.socket.close_code is not None
        return (self.said[-1] if self.said else None), self.socket.close_code


@asynccontextmanager
async def terminal(
    address: str,
    *,
    sandbox: str = "default",
    key: str = "",
    headers: dict[str, str] | None = None,
    host: str | None = None,
    port: int | None = None,
    trust: ssl.SSLContext | None = None,
    **query: object,
) -> AsyncIterator[TerminalClient]:
    """Open a terminal, or go on with one, and take its first message; `host` and `port` say what the name leads to."""
    url = f"{address.replace('http', 'ws', 1)}/api/v1/sandboxes/{sandbox}/terminal?{urlencode(query)}"
    given = (headers or {}) | ({"Authorization": f"Bearer {key}"} if key else {})
    place: dict[str, Any] = {} if host is None else {"host": host, "port": port}
    if trust is not None:
        place["ssl"] = trust
    async with connect(url, additional_headers=given, compression=None, max_queue=4, **place) as socket:
        client = TerminalClient(socket)
        first = await client.take()
        client.begin = int(first.get("offset", 0)) if first is not None else 0
        yield client
