import asyncio

import pytest

from sandpod_gateway.runs import progress as streaming
from sandpod_gateway.runs.progress import OutputStream
from support.gateway.peers import until


class Client:
    """Takes notifications; reads only while `open` is set."""

    def __init__(self) -> None:
        self.got: list[tuple[int, str]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, number: int, message: str) -> None:
        await self.open.wait()
        self.got.append((number, message))

    @property
    def text(self) -> str:
        return "".join(message for _, message in self.got)


async def test_pieces_join_to_the_output_and_numbers_grow() -> None:
    client = Client()
    stream = OutputStream(client.send)
    data = "é漢🙂".encode() * 8000
    for start in range(0, len(data), 4095):
        stream.feed("stdout", data[start : start + 4095])
    await stream.finish()
    assert client.text == "é漢🙂" * 8000
    assert [number for number, _ in client.got] == sorted({number for number, _ in client.got})
    assert stream.dropped == 0


async def test_first_piece_is_sent_at_once() -> None:
    client = Client()
    stream = OutputStream(client.send)
    stream.feed("stdout", b"first")
    await until(lambda: client.text == "first")
    await stream.finish()


async def test_what_comes_close_together_is_one_notification() -> None:
    client = Client()
    stream = OutputStream(client.send)
    for _ in range(100):
        stream.feed("stderr", b"x")
    await until(lambda: bool(client.got))
    await stream.finish()
    assert client.text == "x" * 100
    assert len(client.got) <= 2


async def test_a_run_that_is_over_at_once_makes_no_notification() -> None:
    client = Client()
    stream = OutputStream(client.send)
    stream.feed("stdout", b"short")
    await stream.finish()
    assert (client.got, stream.dropped) == ([], 0)


async def test_a_client_that_does_not_read_costs_bounded_memory_and_what_is_dropped_is_counted() -> None:
    client = Client()
    client.open.clear()
    stream = OutputStream(client.send)
    for _ in range(100):
        stream.feed("stdout", b"y" * 65536)
    assert stream.dropped >= 90 * 65536
    assert stream._size <= streaming.MAX_BUFFER
    client.open.set()
    await stream.finish()
    assert len(client.text) + stream.dropped == 100 * 65536


async def test_what_a_client_never_read_is_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "DRAIN", 0.01)
    client = Client()
    client.open.clear()
    stream = OutputStream(client.send)
    data = "é漢🙂".encode() * 40_000
    stream.feed("stdout", data)
    await stream.finish()
    assert (client.got, stream.dropped) == ([], len(data))


async def test_no_notification_is_larger_than_clients_take() -> None:
    client = Client()
    stream = OutputStream(client.send)
    stream.feed("stdout", b"z" * 200_000)
    await stream.finish()
    assert max(len(message) for _, message in client.got) <= streaming.MAX_MESSAGE
    assert client.text == "z" * 200_000


async def test_a_client_that_is_gone_stops_the_pump_and_not_the_run() -> None:
    async def broken(_number: int, _message: str) -> None:
        raise ConnectionResetError

    stream = OutputStream(broken)
    stream.feed("stdout", b"a")
    await asyncio.wait_for(asyncio.shield(stream._pump), 5)
    stream.feed("stdout", b"b")
    await stream.finish()
