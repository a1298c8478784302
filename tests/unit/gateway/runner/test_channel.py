"""The gateway's end of a channel, at the other end of which anything may be."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.channel import Channel
from sandpod_gateway.runner.connection import RunnerConnection, open_connection
from sandpod_gateway.runner.demux import ConnectionLostError
from sandpod_runner.protocol import messages as protocol
from sandpod_runner.protocol.flow import CREDIT_EVERY
from sandpod_runner.protocol.messages import CHANNEL_WINDOW
from support.gateway.peers import ScriptedStream, until

ANSWER = {"t": "open", "channel": "c", "received": 0, "upto": 0, "offset": 0, "mark": 0}


class Streams:
    """The streams of one sandbox, each opened when the one before has ended."""

    def __init__(self) -> None:
        self.stream = ScriptedStream()  # the latest one that was greeted
        self._connection: RunnerConnection | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[RunnerConnection]:
        if self._connection is None or self._connection.closed:
            stream = ScriptedStream()
            stream.hello()
            self._connection = await open_connection(stream)
            await stream.heard("hello")
            self.stream = stream
        yield self._connection


async def opened(streams: Streams, **answer: Any) -> Channel:
    channel, none = Channel("c", streams.connect, {"kind": "terminal"}, b"top"), streams.stream
    opening = asyncio.create_task(channel.open())
    await until(lambda: streams.stream is not none)
    asked = await streams.stream.heard("open")
    assert (asked.header, asked.payload) == ({"t": "open", "channel": "c", "kind": "terminal"}, b"top")
    streams.stream.say({**ANSWER, **answer})
    await opening
    return channel


async def test_it_goes_on_over_another_stream_with_nothing_lost_or_doubled() -> None:
    streams = Streams()
    channel = await opened(streams)
    first = streams.stream
    await channel.write(b"abc")
    assert (await first.heard("data")).payload == b"abc"
    channel.resize(10, 20)
    assert (await first.heard("resize")).header["cols"] == 10
    first.say({"t": "data", "channel": "c", "offset": 0, "last": False}, bytes(CREDIT_EVERY) + b"de")
    assert await channel.read(CREDIT_EVERY) == bytes(CREDIT_EVERY)
    channel.acknowledge(CREDIT_EVERY, mark=5)
    assert (await first.heard("credit")).header["upto"] == CREDIT_EVERY
    first.say_raw(b"")
    await until(lambda: streams.stream is not first)
    again = await streams.stream.heard("open")
    state = {"received": CREDIT_EVERY + 2, "upto": CREDIT_EVERY, "mark": 5}
    assert again.header == {"t": "open", "channel": "c", **state}  # it is not made anew
    streams.stream.say({**ANSWER, "received": 1, "offset": CREDIT_EVERY + 2})
    assert (await streams.stream.heard("resize")).header["rows"] == 20
    assert (await streams.stream.heard("data")).payload == b"bc"
    streams.stream.say({"t": "data", "channel": "c", "offset": CREDIT_EVERY, "last": True}, b"defg")
    assert [await channel.read(), await channel.read(), await channel.read()] == [b"de", b"fg", b""]
    await channel.close(stay=True)
    assert (await streams.stream.heard("close")).header["stay"] is True


async def test_who_goes_on_with_it_here_takes_it_from_whoever_had_it() -> None:
    streams = Streams()
    channel = await opened(streams, received=CREDIT_EVERY, upto=7, offset=100, mark=90)
    assert (channel.received, channel.offset, channel.mark) == (CREDIT_EVERY, 100, 90)
    other = Channel("c", streams.connect, {})
    opening = asyncio.create_task(other.open())
    await streams.stream.heard("open")
    with pytest.raises(SandpodError) as lost:
        await channel.read()
    assert lost.value.code == ErrorCode.SESSION_BUSY
    # What was on its way to the first is not the second's.
    streams.stream.say({"t": "data", "channel": "c", "offset": 3, "last": False}, b"old")
    streams.stream.say({**ANSWER, "offset": 100})
    await opening
    streams.stream.say({"t": "data", "channel": "c", "offset": 100, "last": False}, b"new")
    assert await other.read() == b"new"
    for each in (channel, other):
        await each.close(stay=False)


@pytest.mark.parametrize(
    ("frame", "payload"),
    [
        ({"t": "data", "offset": 1}, b"after a gap"),
        ({"t": "data", "offset": 0}, bytes(CHANNEL_WINDOW + 1)),
        ({"t": "data", "offset": "no number"}, b""),
        ({"t": "credit", "upto": 1}, b""),
        ({"t": "data", "offset": 0, "last": 5}, b""),
    ],
)
async def test_what_makes_no_sense_ends_it_with_a_code(frame: dict[str, Any], payload: bytes) -> None:
    streams = Streams()
    channel = await opened(streams)
    streams.stream.say({**frame, "channel": "c"}, payload)
    with pytest.raises(SandpodError) as lost:
        await channel.read()
    assert lost.value.code == ErrorCode.BACKEND_ERROR
    with pytest.raises(SandpodError):
        await channel.write(bytes(CHANNEL_WINDOW + 1))
    await streams.stream.heard("close")
    await channel.close(stay=False)


@pytest.mark.parametrize("answer", [{"upto": CHANNEL_WINDOW + 1}, {"received": CHANNEL_WINDOW + 1}, {"offset": -1}])
async def test_an_answer_that_makes_no_sense_opens_nothing(answer: dict[str, Any]) -> None:
    with pytest.raises(SandpodError) as refused:
        await opened(Streams(), **answer)
    assert refused.value.code == ErrorCode.BACKEND_ERROR


async def test_a_refusal_and_a_sandbox_that_is_gone_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    none = (streams := Streams()).stream
    opening = asyncio.create_task(Channel("c", streams.connect, {}).open())
    await until(lambda: streams.stream is not none)
    await streams.stream.heard("open")
    streams.stream.say({"t": "error", "channel": "c", "code": "not_found", "message": "There is none."})
    with pytest.raises(SandpodError) as refused:
        await opening
    assert refused.value.code == ErrorCode.NOT_FOUND
    assert "`cwd`" in refused.value.next_step

    monkeypatch.setattr(protocol, "CHANNEL_GRACE", 0.0)
    channel = await opened(streams := Streams())

    @asynccontextmanager
    async def gone() -> AsyncIterator[RunnerConnection]:
        raise ConnectionLostError
        yield

    channel._connect = gone
    streams.stream.say_raw(b"")
    with pytest.raises(SandpodError) as lost:
        await channel.read()
    assert lost.value.code == ErrorCode.SANDBOX_LOST
    await channel.close(stay=False)


async def test_a_runner_that_ends_each_stream_as_it_begins_is_not_asked_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel, sleep, pauses = await opened(streams := Streams()), asyncio.sleep, list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    for _ in range(5):
        last = streams.stream
        last.say_raw(b"")
        await until(lambda last=last: streams.stream is not last)  # type: ignore[misc]
        await streams.stream.heard("open")
        streams.stream.say(ANSWER)
    assert sum(seconds > 0 for seconds in pauses) >= 3
    await channel.close(stay=False)
