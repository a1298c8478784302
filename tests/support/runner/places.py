"""Sandboxes of real backends, to be spoken with as a runner that was started directly is.

Called by `runner/conftest.py`. The backend lives in a thread with an event loop of its own, since each test has another
loop and all share the sandbox; tests connect to a socket there, and what comes is passed on as it is.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from sandpod_gateway.backends.base import Backend, ClaimRequest
from sandpod_gateway.errors import SandpodError
from support.runner.harness import Sandbox

_PIECE: Final = 256 * 1024
_START_SECONDS: Final = 120.0


@contextlib.contextmanager
def claimed(backend: Backend, folder: Path) -> Iterator[Sandbox]:
    """Claim a sandbox of a backend that was not started; both have ended afterwards."""
    address = folder / "socket"
    ready: Future[asyncio.AbstractEventLoop] = Future()
    over = asyncio.Event()

    async def serve() -> None:
        await backend.start()
        try:
            record = await backend.claim(ClaimRequest(owner="contract"))
            try:
                async with await asyncio.start_unix_server(_Door(backend, record.name).enter, address, limit=_PIECE):
                    ready.set_result(asyncio.get_running_loop())
                    await over.wait()
            finally:
                await backend.delete(record.name)
        finally:
            await backend.close()

    def live() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=live, name="backend")
    thread.start()
    try:
        loop = ready.result(_START_SECONDS)
        try:
            yield Sandbox(address)
        finally:
            loop.call_soon_threadsafe(over.set)
    finally:
        thread.join()


class _Door:
    """Makes each connection a stream to one sandbox."""

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend = backend
        self._name = name

    async def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            stream = await self._backend.open_stream(self._name)
        except SandpodError:
            writer.close()  # to the test it is a stream that ended
            return

        async def inwards() -> None:
            while data := await reader.read(_PIECE):
                await stream.write(data)

        async def outwards() -> None:
            while data := await stream.read():
                writer.write(data)
                await writer.drain()

        directions = [asyncio.create_task(inwards()), asyncio.create_task(outwards())]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            # One side has gone, in whatever way: both are told.
            await asyncio.gather(*directions, return_exceptions=True)
            await stream.close()
            writer.close()
