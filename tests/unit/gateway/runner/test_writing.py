"""What the gateway writes to a sandbox that reads slowly, or not at all: whole frames, for a bounded time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fakes.memory_stream import stream_pair
from sandpod_gateway.backends.base import ByteStream
from sandpod_gateway.backends.local import process as local_process
from sandpod_gateway.runner import connection as connections
from sandpod_gateway.runner.connection import RunnerConnection, open_connection
from sandpod_gateway.runner.demux import ConnectionLostError
from sandpod_runner.protocol.frames import Decoder, Frame, encode
from support.gateway.peers import PATIENCE
from support.servers.exec_server import serving, stream_of

PART = 1024 * 1024
MANY = 32  # frames of a part each: more than all buffers on the way hold


class Peer:
    """The other end of a stream, which reads when the test lets it."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self._decoder = Decoder()

    def take(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self.frames.put_nowait(frame)

    async def until(self, kind: str) -> list[Frame]:
        """Return the frames that come, up to one of that kind."""
        got = [await asyncio.wait_for(self.frames.get(), PATIENCE)]
        while got[-1].kind != kind:
            got.append(await asyncio.wait_for(self.frames.get(), PATIENCE))
        return got


@asynccontextmanager
async def memory(peer: Peer, _: Path) -> AsyncIterator[ByteStream]:
    ours, theirs = stream_pair()
    await theirs.write(encode({"t": "hello", "version": 1, "languages": {}}))

    async def read() -> None:
        await peer.reads.wait()
        while data := await theirs.read():
            peer.take(data)

    reading = asyncio.create_task(read())
    yield ours
    await ours.close()
    peer.reads.set()
    await reading


@asynccontextmanager
async def exec_stream(peer: Peer, _: Path) -> AsyncIterator[ByteStream]:
    async def handler(socket: web.WebSocketResponse) -> None:
        await peer.reads.wait()
        async for message in socket:
            peer.take(message.data[1:])

    async with serving(handler) as server, stream_of(server) as stream:
        yield stream
        peer.reads.set()


@asynccontextmanager
async def unix_socket(peer: Peer, folder: Path) -> AsyncIterator[ByteStream]:
    answers: list[asyncio.StreamWriter] = []

    async def handler(reader: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        answers.append(answer)
        await peer.reads.wait()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(PART):
                peer.take(data)

    server = await asyncio.start_unix_server(handler, folder / "s")
    stream = local_process.SocketStream(*await asyncio.open_unix_connection(folder / "s"))
    yield stream
    await stream.close()
    peer.reads.set()
    server.close()
    for answer in answers:
        answer.close()
    await server.wait_closed()


Open = Callable[[Peer, Path], contextlib.AbstractAsyncContextManager[ByteStream]]


async def blocked(write: Callable[[int], Awaitable[Any]]) -> list[asyncio.Task[Any]]:
    """Write so much that the stream takes no more, and return the writes that wait."""
    tasks = [asyncio.ensure_future(write(number)) for number in range(MANY)]
    counts = [-1, 0]
    while counts[-1] != counts[-20:][0]:
        await asyncio.sleep(0.005)  # what is waited for is that nothing happens any more
        counts.append(sum(task.done() for task in tasks))
        counts[:0] = [-1] * (20 - len(counts))
    waiting = [task for task in tasks if not task.done()]
    assert waiting
    return waiting


@pytest.mark.parametrize("kind", [memory, exec_stream, unix_socket])
async def test_write_that_is_cancelled_leaves_no_half_of_it(kind: Open, tmp_path: Path) -> None:
    peer = Peer()
    async with kind(peer, tmp_path) as stream:
        waiting = await blocked(lambda number: stream.write(encode({"t": "part", "n": number}, bytes(PART))))
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        last = asyncio.create_task(stream.write(encode({"t": "last"})))
        peer.reads.set()
        got = await peer.until("last")
        await last
    whole = [frame.header["n"] for frame in got[:-1]]
    assert whole == list(range(MANY - len(waiting)))


async def test_upload_that_is_cancelled_while_nobody_reads_is_aborted_by_a_whole_frame(tmp_path: Path) -> None:
    peer = Peer()

    async def content() -> AsyncIterator[bytes]:
        while True:
            yield bytes(PART)

    async with memory(peer, tmp_path) as stream:
        connection = await open_connection(stream)
        uploading = asyncio.create_task(connection.upload({"path": "f"}, content()))
        await blocked_in(connection)
        uploading.cancel()
        await asyncio.wait([uploading])
        peer.reads.set()
        got = await peer.until("file")
        while not got[-1].header.get("abort"):
            got += await peer.until("file")
        assert [len(frame.payload) for frame in got[1:-1]] == [PART] * (len(got) - 2)
        await connection.close()


async def blocked_in(connection: RunnerConnection) -> None:
    """Return when a frame of the connection waits for the other side."""
    lock, held = connection._lock, 0
    async with asyncio.timeout(PATIENCE):
        while held < 50:
            await asyncio.sleep(0)
            held = held + 1 if lock.locked() else 0


async def ask(connection: RunnerConnection) -> None:
    await connection.ask("file", {"op": "stat", "path": "x" * 200_000})


async def upload(connection: RunnerConnection) -> None:
    async def content() -> AsyncIterator[bytes]:
        for _ in range(MANY):
            yield bytes(PART)

    await connection.upload({"path": "f"}, content())


async def start(connection: RunnerConnection) -> None:
    await connection.send_stdin("r1", bytes(MANY * PART))


@pytest.mark.parametrize("call", [ask, upload, start])
async def test_runner_that_does_not_read_keeps_nobody_waiting(
    call: Callable[[RunnerConnection], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WRITE_TIMEOUT", 0.05)
    async with memory(Peer(), tmp_path) as stream:
        connection = await open_connection(stream)
        others = [asyncio.create_task(ask(connection)) for _ in range(5)]
        with pytest.raises(ConnectionLostError, match="does not read"):
            await asyncio.wait_for(call(connection), PATIENCE)
        assert connection.closed
        for other in await asyncio.gather(*others, return_exceptions=True):
            assert isinstance(other, ConnectionLostError)
        await connection.close()


async def test_socket_to_a_runner_that_does_not_read_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_process, "CLOSE_TIMEOUT", 0.05)
    async with unix_socket(Peer(), tmp_path) as stream:
        waiting = await blocked(lambda _: stream.write(bytes(PART)))
        await asyncio.wait_for(stream.close(), PATIENCE)
        for task in waiting:
            with pytest.raises(ConnectionError):
                await task
