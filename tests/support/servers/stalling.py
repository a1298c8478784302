"""A TCP proxy in front of the API server that can let connections stall: they stay open, and nothing comes through.

Called by `test_stalled_watches.py`. A connection that is closed tells both sides; one that a router or a firewall has
forgotten tells neither, and that is what is made here. Those that are opened later work.
"""

import asyncio
import contextlib
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from support.operator.process import run

Stall = Literal["both", "answers", "half-open"]
"""What happens to connections: nothing comes through either way; requests arrive and answers don't; the API server
has closed its end and the client never hears of it."""
_CHUNK = 65536


@dataclass(eq=False)
class _Line:
    """One connection of the client's, and its other half."""

    inward: asyncio.StreamReader
    back: asyncio.StreamWriter
    outward: asyncio.StreamReader
    on: asyncio.StreamWriter
    stall: Stall | None = None
    ended: set[str] = field(default_factory=set)
    closed: bool = False

    async def carry(self) -> None:
        """Carry bytes both ways until the client has closed, or until either has while nothing is stalled."""
        requests = asyncio.create_task(self._pump(self.inward, self.on, "client"))
        answers = asyncio.create_task(self._pump(self.outward, self.back, "server"))
        await asyncio.wait({requests, answers}, return_when=asyncio.FIRST_COMPLETED)
        if self.stall is not None:
            await requests  # the client's own end: it is never told
        for task in (requests, answers):
            task.cancel()
        self.closed = True
        for end in (self.back, self.on):
            end.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, who: str) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK):
                if self.stall is None or (self.stall == "answers" and who == "client"):
                    target.write(data)
                    with contextlib.suppress(OSError):
                        await target.drain()
        self.ended.add(who)


class StallingProxy:
    """A port of this machine that leads to the API server that KUBECONFIG names."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._lines: list[_Line] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        config = json.loads(run("config", "view", "--minify", "--flatten", "--raw", "-o", "json"))
        [cluster] = config["clusters"]
        address = urlsplit(cluster["cluster"]["server"])
        self._server = (str(address.hostname), address.port or 443)
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        # The certificate is for the server's own name, which is not this proxy's.
        cluster["cluster"].pop("certificate-authority-data", None)
        cluster["cluster"] |= {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
        self.kubeconfig.write_text(json.dumps(config), encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def stall(self, how: Stall) -> "Stalled":
        """Let all connections that are open now stall."""

        async def now() -> list[_Line]:
            lines = [line for line in self._lines if line.stall is None and not line.ended]
            for line in lines:
                line.stall = how
                if how == "half-open":
                    line.on.transport.abort()
            return lines

        return Stalled(asyncio.run_coroutine_threadsafe(now(), self._loop).result(10))

    async def _listen(self) -> int:
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def _connected(self, inward: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        outward, on = await asyncio.open_connection(*self._server)
        line = _Line(inward, back, outward, on)
        self._lines.append(line)
        await line.carry()

    async def _close(self) -> None:
        self._listener.close()
        for line in self._lines:
            line.back.transport.abort()
            line.on.transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@dataclass(frozen=True)
class Stalled:
    """Connections that stall."""

    lines: list[_Line]

    def kept(self) -> bool:
        """Tell whether there are any, and whether each is still open but for those that the client has closed."""
        return bool(self.lines) and all("client" in line.ended for line in self.lines if line.closed)
