"""The exec stream against a server that speaks Kubernetes' side of the protocol, and breaks it where a test says so."""

import asyncio
import json
from collections.abc import Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import unused_port

from sandpod_gateway.backends.kubernetes.streams.exec_stream import (
    BUFFER,
    MAX_MESSAGE,
    STDERR_TAIL,
    V4,
    V5,
    ExecEnd,
    ExecStream,
    open_exec,
)
from sandpod_kube.errors import RefusedError, UnreachableError
from support.servers.exec_server import echo, serving, stay, stream_of

LIMIT = 60.0  # seconds for anything that is waited for; all of it takes milliseconds
SUCCESS = b"\x03" + json.dumps({"metadata": {}, "status": "Success"}).encode()


EXIT_42 = (
    b"\x03"
    + json.dumps({"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "42"}]}}).encode()
)


async def read_all(stream: ExecStream) -> bytes:
    data = b""
    async with asyncio.timeout(LIMIT):
        while piece := await stream.read():
            data += piece
    return data


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not true():  # noqa: ASYNC110 # what is waited for has no event of its own
            await asyncio.sleep(0.001)


async def test_bytes_come_exactly_also_where_frames_split_a_character() -> None:
    text = "é漢🙂" * 50
    raw = text.encode()

    async def handler(socket: web.WebSocketResponse) -> None:
        for start in range(0, len(raw), 7):
            await socket.send_bytes(b"\1" + raw[start : start + 7])
        await socket.send_bytes(SUCCESS)

    async with serving(handler) as server, stream_of(server) as stream:
        assert (await read_all(stream)).decode() == text
        assert stream.end == ExecEnd(0, "")


async def test_what_is_written_comes_to_the_program_and_back() -> None:
    async with serving(echo) as server, stream_of(server) as stream:
        await stream.write(b"hello")
        assert await stream.read() == b"hello"
        assert not stream.ended


async def test_an_empty_frame_is_no_end() -> None:
    async def handler(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\1")
        await socket.send_bytes(b"")
        await socket.send_bytes(b"\1x")
        await stay(socket)

    async with serving(handler) as server, stream_of(server) as stream:
        assert await stream.read() == b"x"


async def test_the_exit_code_comes_after_all_output() -> None:
    async def handler(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\1out")
        await socket.send_bytes(EXIT_42)

    async with serving(handler) as server, stream_of(server) as stream:
        assert await read_all(stream) == b"out"
        assert stream.end is not None
        assert stream.end.exit_code == 42


@pytest.mark.promise("end-known")
@pytest.mark.parametrize("abort", [False, True])
async def test_a_connection_lost_before_the_status_has_no_exit_code(abort: bool) -> None:  # noqa: FBT001
    async def handler(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\1half")
        if abort:
            transport = socket._req.transport if socket._req else None
            assert transport is not None
            transport.abort()

    async with serving(handler) as server, stream_of(server) as stream:
        assert (await read_all(stream)) in {b"half", b""}
        assert stream.ended
        assert stream.end is None


async def test_v5_is_preferred_and_v4_is_taken_where_there_is_no_other() -> None:
    chosen = []

    async def handler(socket: web.WebSocketResponse) -> None:
        chosen.append(socket.ws_protocol)
        await socket.send_bytes(SUCCESS)

    for protocols in ((V4, V5), (V4,)):
        async with serving(handler, protocols=protocols) as server, stream_of(server) as stream:
            assert await read_all(stream) == b""
    assert chosen == [V5, V4]


async def test_a_server_that_does_not_speak_the_protocol_is_refused() -> None:
    async with serving(stay, protocols=()) as server:
        with pytest.raises(UnreachableError, match="exec protocol"):
            async with stream_of(server):
                pass


async def test_a_page_that_is_no_websocket_is_unreachable_and_a_refusal_has_its_status() -> None:
    async with serving(stay) as server:
        with pytest.raises(UnreachableError, match="200"):
            async with stream_of(server, path="/page"):
                pass
        with pytest.raises(RefusedError) as refused:
            async with stream_of(server, path="/none"):
                pass
    assert refused.value.status == 404


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    target = {"url": f"http://127.0.0.1:{unused_port()}/exec"}
    async with aiohttp.ClientSession() as http:
        with pytest.raises(UnreachableError):
            await open_exec(http, target)


async def test_a_slow_reader_slows_the_sender_and_loses_nothing() -> None:
    total = 64 * 2**20  # more than all buffers between the two ends can hold
    piece = bytes(32 * 1024)
    done = asyncio.Event()

    async def handler(socket: web.WebSocketResponse) -> None:
        for _ in range(total // len(piece)):
            await socket.send_bytes(b"\1" + piece)
        await socket.send_bytes(SUCCESS)
        done.set()

    async with serving(handler) as server, stream_of(server) as stream:
        await until(lambda: len(stream._unread) >= BUFFER)
        assert len(stream._unread) < BUFFER + MAX_MESSAGE
        assert not done.is_set()
        got = 0
        async with asyncio.timeout(6 * LIMIT):
            while data := await stream.read():
                assert len(data) <= 2**20
                got += len(data)
        assert got == total
        assert done.is_set()


async def test_a_slow_reader_is_not_taken_for_a_dead_connection() -> None:
    pings = 0

    async def handler(socket: web.WebSocketResponse) -> None:
        nonlocal pings
        sending = asyncio.create_task(_flood(socket))
        async for message in socket:
            pings += message.type is aiohttp.WSMsgType.PING
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    async with serving(handler, autoping=False) as server, stream_of(server, heartbeat=0.01) as stream:
        await until(lambda: len(stream._unread) >= BUFFER)
        seen = pings
        await until(lambda: pings >= seen + 6)
        assert not stream.ended


async def _flood(socket: web.WebSocketResponse) -> None:
    while True:
        await socket.send_bytes(b"\1" + bytes(32 * 1024))


async def test_a_server_that_stops_answering_ends_the_stream() -> None:
    async with serving(stay, autoping=False) as server, stream_of(server, heartbeat=0.01) as stream:
        assert await read_all(stream) == b""
        assert stream.ended
        assert stream.end is None
        with pytest.raises(ConnectionError):
            await stream.write(b"x")


async def test_pings_both_ways_keep_a_silent_stream() -> None:
    got: list[aiohttp.WSMsgType] = []

    async def handler(socket: web.WebSocketResponse) -> None:
        await socket.ping(b"are you there")
        async for message in socket:
            got.append(message.type)
            if message.type is aiohttp.WSMsgType.PING:
                await socket.pong(message.data)

    async with serving(handler, autoping=False) as server, stream_of(server, heartbeat=0.01) as stream:
        await until(lambda: got.count(aiohttp.WSMsgType.PING) >= 6)
        assert not stream.ended
    assert got.count(aiohttp.WSMsgType.PONG) == 1


async def test_a_message_over_the_limit_ends_the_stream() -> None:
    async def handler(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\1" + bytes(MAX_MESSAGE + 1))
        await stay(socket)

    async with serving(handler) as server, stream_of(server) as stream:
        assert await read_all(stream) == b""
        assert stream.ended


async def test_only_the_tail_of_standard_error_is_kept_and_is_printable() -> None:
    async def handler(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\2" + b"x" * 50_000)
        await socket.send_bytes(b"\2" + "\x1b[2Jé".encode()[:-1])
        await socket.send_bytes(b"\2" + "é".encode()[1:] + b"\nneedle")
        await socket.send_bytes(SUCCESS)

    async with serving(handler) as server, stream_of(server) as stream:
        assert await read_all(stream) == b""
        assert len(stream.stderr) <= STDERR_TAIL
        assert stream.stderr.endswith("x [2Jé needle")


async def test_large_writes_do_not_mix() -> None:
    size = 700 * 1024
    async with serving(echo) as server, stream_of(server) as stream:
        writes = [asyncio.create_task(stream.write(letter * size)) for letter in (b"a", b"b")]
        got = b""
        async with asyncio.timeout(LIMIT):
            while len(got) < 2 * size:
                got += await stream.read()
        await asyncio.gather(*writes)
    assert got == b"a" * size + b"b" * size


async def test_close_wakes_a_reader_and_refuses_writes_and_can_be_repeated() -> None:
    async with serving(stay) as server, stream_of(server) as stream:
        reading = asyncio.create_task(stream.read())
        await until(lambda: stream._listening)
        await asyncio.gather(stream.close(), stream.close())
        assert await asyncio.wait_for(reading, LIMIT) == b""
        with pytest.raises(ConnectionError):
            await stream.write(b"x")
        assert await stream.read() == b""


async def test_close_wakes_a_writer_that_the_other_side_keeps_waiting() -> None:
    over = asyncio.Event()

    async def handler(_: web.WebSocketResponse) -> None:
        await over.wait()

    async with serving(handler) as server, stream_of(server) as stream:
        await stream.write(bytes(64 * 2**20))
        writing = asyncio.create_task(stream.write(b"x"))
        await until(stream._write_lock.locked)
        await stream.close()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(writing, LIMIT)
        over.set()
