"""A terminal over a stream to a runner, as the gateway uses one. Used by the tests in `runner/`."""

import asyncio
import re
import secrets
from typing import Any

from sandpod_runner.protocol.flow import Receiving, Sending
from support.runner.harness import PATIENCE, Client, RefusedError


class Terminal:
    """A terminal, which can go on over another stream."""

    def __init__(self, client: Client) -> None:
        self.name = f"term-{secrets.token_hex(4)}"
        self.sending, self.receiving = Sending(), Receiving()
        self.seen = b""  # what came and was not looked at yet
        self._client = client

    async def open(self, client: Client | None = None, command: str = "", **fields: Any) -> dict[str, Any]:
        """Open it, or go on with it, and return the answer."""
        self._client = client or self._client
        state = {"received": self.receiving.received, "upto": self.receiving.credited}
        await self._client.send({"t": "open", "channel": self.name, **state, **fields}, command.encode())
        while True:
            frame = await self._client.reply()
            if frame.kind == "error":
                raise RefusedError(frame.header)
            if frame.kind == "open" and frame.header["channel"] == self.name:
                self.sending.acknowledge(frame.header["upto"])
                self.sending.resume(frame.header["received"])
                await self._flush()
                return frame.header

    async def begin(self, command: str = "", **fields: Any) -> dict[str, Any]:
        """Open a new one."""
        return await self.open(command=command, kind="terminal", timeout=PATIENCE, **fields)

    async def type(self, text: str) -> None:
        self.sending.put(text.encode())
        await self._flush()

    async def tell(self, kind: str, **fields: Any) -> None:
        await self._client.send({"t": kind, "channel": self.name, **fields})

    async def take(self) -> bytes:
        """Return what comes next; empty at the end. It is not acknowledged."""
        while True:
            frame = await self._client.reply()
            assert frame.header.get("channel") == self.name, frame
            if frame.kind == "credit":
                self.sending.acknowledge(frame.header["upto"])
                await self._flush()
            else:
                assert frame.kind == "data", frame
                last = frame.header["last"]
                new = self.receiving.take(frame.header["offset"], frame.payload, last=last)
                if new or last:
                    return new

    async def credit(self, upto: int, mark: int = 0) -> None:
        """Acknowledge what came before an offset."""
        if self.receiving.credit(upto):
            await self.tell("credit", upto=upto, mark=mark)

    async def until(self, pattern: str) -> str:
        """Return what comes up to a text that matches."""
        async with asyncio.timeout(PATIENCE):
            while (found := re.search(pattern.encode(), self.seen)) is None:
                data = await self.take()
                assert data, f"it ended: {self.seen!r}"
                await self.credit(self.receiving.received)
                self.seen += data
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before.decode()

    async def run(self, command: str) -> str:
        """Type a command into a shell, and return what it says."""
        mark = secrets.token_hex(4)
        told = f"echo {mark[:4]}''{mark[4:]}"  # which does not read so where it is typed
        await self.type(f"{told}; {command}; {told}\n")
        await self.until(mark)
        return (await self.until(mark)).removesuffix(mark).strip()

    async def rest(self) -> bytes:
        """Return all that comes until the end."""
        seen, self.seen = self.seen, b""
        while not self.receiving.ended:
            seen += await self.take()
            await self.credit(self.receiving.received)
        return seen

    async def _flush(self) -> None:
        while (piece := self.sending.next()) is not None:
            offset, data, last = piece
            await self._client.send({"t": "data", "channel": self.name, "offset": offset, "last": last}, data)
