"""The gateway's end of a stream, as plain as can be: it sends frames and waits, bounded, for those that come.

Called by the contract tests, which must not trust the gateway's own multiplexer to say what a backend does.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sandpod_gateway.backends.base import Backend, ByteStream
from sandpod_runner.protocol import messages as protocol
from sandpod_runner.protocol.frames import Decoder, Frame, encode

T = TypeVar("T")

BOUND = 60.0  # seconds that anything here may take; nothing waits for it to pass
_POLL = 0.02
_RUNS = itertools.count(1)


async def until(what: str, look: Callable[[], Awaitable[T | None]], within: float = BOUND) -> T:
    """Return the first true answer of `look`, or fail with the name of what did not come."""
    end = time.monotonic() + within
    while not (answer := await look()):
        assert time.monotonic() < end, f"not within {within:g} s: {what}"
        await asyncio.sleep(_POLL)
    return answer


class Peer:
    """Speaks with one runner over one stream."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._decoder = Decoder()
        self._waiting: list[Frame] = []

    async def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        await asyncio.wait_for(self.stream.write(encode(header, payload)), BOUND)

    async def receive(self, *kinds: str) -> Frame:
        """Return the next frame of one of the kinds; those of other kinds are left for later."""
        while True:
            for index, frame in enumerate(self._waiting):
                if frame.kind in kinds:
                    return self._waiting.pop(index)
            data = await asyncio.wait_for(self.stream.read(), BOUND)
            assert data, f"the stream ended before {' or '.join(kinds)} came"
            self._waiting += self._decoder.feed(data)

    async def ended(self) -> None:
        """Return when the stream has ended."""
        while await asyncio.wait_for(self.stream.read(), BOUND):
            pass

    async def hello(self) -> Frame:
        await self.send({"t": "hello", "version": protocol.VERSION})
        return await self.receive("hello")

    async def start(self, code: str, **fields: Any) -> str:
        """Start a program and return the run's name."""
        run = f"run-{next(_RUNS)}"
        header = {"t": "run", "run": run, "language": "python", "args": [], "env": {}, "cwd": ".", "stdin": False}
        header |= {"timeout": 30, "output_limit": 1_000_000, "detached": False}
        await self.send({**header, **fields}, code.encode())
        assert (await self.receive("started", "error")).kind == "started"
        return run

    async def line(self) -> str:
        """Return the next line of output, however many pieces it comes in."""
        text = bytearray()
        while not text.endswith(b"\n"):
            text += (await self.receive("out")).payload
        return text.decode()

    async def output(self, code: str, **fields: Any) -> tuple[str, Frame]:
        """Run a program to its end; return what it wrote, both streams as they came, and the end."""
        await self.start(code, **fields)
        text = bytearray()
        while (frame := await self.receive("out", "end")).kind == "out":
            text += frame.payload
        return text.decode(errors="replace"), frame

    async def request(self, header: dict[str, Any], payload: bytes = b"") -> Frame:
        await self.send({"id": next(_RUNS), **header}, payload)
        return await self.receive("reply", "pong", "error")


@asynccontextmanager
async def talk(backend: Backend, name: str) -> AsyncIterator[Peer]:
    """Open a stream to a sandbox, say hello, and close it afterwards."""
    stream = await asyncio.wait_for(backend.open_stream(name), BOUND)
    try:
        peer = Peer(stream)
        await peer.hello()
        yield peer
    finally:
        await stream.close()
