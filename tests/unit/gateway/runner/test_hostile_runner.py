"""Whatever frames a sandbox sends, the gateway takes them: nothing is raised, nothing grows, and nobody else waits."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpod_gateway import time_slices as turns
from sandpod_gateway.content import json_size
from sandpod_gateway.limits import RunLimits
from sandpod_gateway.runner.connection import open_connection
from sandpod_gateway.runner.demux import (
    MAX_SHOWN,
    MAX_UNASKED,
    SMALL_HEADER,
    BrokenProtocolError,
    ConnectionLostError,
    Inbox,
)
from sandpod_gateway.runner.run_ids import new_run, run_id
from sandpod_gateway.runs import background, recorder, tail
from sandpod_gateway.runs.background import BackgroundRuns
from sandpod_gateway.runs.request import RunRequest
from sandpod_runner.protocol import messages as protocol
from sandpod_runner.protocol.frames import Decoder, Frame, FrameError, encode
from support.gateway.fake_gateway import Caller, Place
from support.gateway.peers import PATIENCE, ScriptedStream, Sink, until
from support.servers.exec_server import serving, stay, stream_of

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["r-1", "stdout", "ok", "text/plain", "image/png", "session_busy"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = [
    *("run", "id", "stream", "offset", "mime", "index", "outcome", "exit_code", "signal", "duration_ms", "cpu_ms"),
    *("stdout_bytes", "artifacts", "artifacts_more", "detail", "code", "message", "as", "version", "languages", "runs"),
]
FRAMES = st.builds(
    lambda kind, fields, payload: Frame({**fields, "t": kind}, payload),
    st.sampled_from(
        ["hello", "started", "known", "out", "display", "result", "end", "reply", "pong", "error", "", "x"]
    ),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6),
    st.binary(max_size=100),
)


class _Careless(Sink):
    """Takes any offset: what comes is the sandbox's business."""

    def output(self, stream: str, offset: int, data: bytes) -> None:
        assert stream in {"stdout", "stderr"}
        assert offset >= 0
        self.got.append((stream, data))


@settings(deadline=None)
@given(st.lists(FRAMES, max_size=30))
def test_frames_that_mean_anything_are_taken(frames: list[Frame]) -> None:
    async def take() -> None:
        inbox = Inbox()
        inbox.expect_run("r-1", _Careless())
        inbox.expect_reply(1)
        for frame in frames:
            assert inbox.take(frame) in {True, False}
        assert set(inbox.runs) <= {"r-1"}
        assert set(inbox.replies) <= {1}

    asyncio.run(take())


FLOOD = 512 * 1024  # bytes: about what one read gives
OUT = {"t": "out", "run": "r1", "stream": "stdout", "offset": 0}
END = {"t": "end", "run": "r1", "outcome": "ok"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which a turn is over whenever somebody looks."""

    def ticks() -> Iterator[float]:
        now = 0.0
        while True:
            yield now
            now += turns.TURN

    clock = ticks()
    monkeypatch.setattr(turns, "monotonic", lambda: next(clock))


class _Others:
    """All else that the event loop has to do: counts its turns."""

    def __init__(self) -> None:
        self.turns = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turns += 1

    def stop(self) -> None:
        self._task.cancel()


async def _flooded(flood: bytes, *, end: bool = True) -> tuple[int, ConnectionLostError | None]:
    """Send a run's stream all of it at once. Return the turns of others until the run's end, and why it was lost."""
    stream = ScriptedStream()
    stream.hello()
    connection = await open_connection(stream)
    run = await connection.start_run({"run": "r1"}, b"1", _Careless())
    others = _Others()
    stream.say_raw(flood + (encode(END) if end else b""))
    lost = None
    try:
        await asyncio.wait_for(run.ended, PATIENCE)
    except ConnectionLostError as error:
        lost = error
    others.stop()
    await connection.close()
    return others.turns, lost


@pytest.mark.usefixtures("clock")
async def test_others_have_their_turns_while_frames_of_a_run_flood_in() -> None:
    piece = encode(OUT)
    count = FLOOD // len(piece)
    turned, lost = await _flooded(piece * count)
    assert lost is None
    assert turned >= count


@pytest.mark.usefixtures("clock")
async def test_others_have_their_turns_while_tiny_messages_flood_in() -> None:
    count = 2000

    async def handler(socket: Any) -> None:
        for _ in range(count):
            await socket.send_bytes(b"\1x")
        await stay(socket)

    async with serving(handler) as server, stream_of(server) as stream:
        others, got = _Others(), 0
        while got < count:
            got += len(await asyncio.wait_for(stream.read(), PATIENCE))
        others.stop()
    assert others.turns >= count - 1


@pytest.mark.parametrize(
    "frame",
    [
        encode({}),
        encode({"t": "out", "run": "unknown", "stream": "stdout", "offset": 0}, b"x"),
        encode({**OUT, "offset": -1}),
        encode({"t": "reply", "id": 7}),
        encode({"t": "hello", "version": 1, "languages": {}}),
        encode({"t": "started", "run": "unknown"}),
        encode({"t": "result", "run": "r1", "mime": "x" * 65}),
    ],
)
async def test_stream_of_frames_that_nobody_waits_for_is_closed(frame: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, take = [], Inbox.take

    def counted(self: Inbox, frame: Frame) -> bool:
        taken.append(frame)
        return take(self, frame)

    monkeypatch.setattr(Inbox, "take", counted)
    _, lost = await _flooded(frame * (FLOOD // len(frame)))
    assert isinstance(lost, BrokenProtocolError)
    assert str(lost) == "it sent too many frames that nobody asked for"
    assert len(taken) <= MAX_UNASKED + 2  # and the first hello


async def test_runs_displays_beyond_what_a_runner_sends_are_not_looked_at() -> None:
    inbox, sink = Inbox(), Sink()
    inbox.expect_run("r1", sink)
    for _ in range(1000):
        inbox.take(Frame({"t": "result", "run": "r1", "mime": "text/html"}, b"x"))
    assert len(sink.got) == MAX_SHOWN


async def test_long_headers_where_a_runner_sends_short_ones_close_the_stream() -> None:
    frame = encode({**OUT, "x": [[]] * 80_000})
    _, lost = await _flooded(frame * 8)
    assert isinstance(lost, BrokenProtocolError)
    assert len(frame) > SMALL_HEADER


async def test_answers_to_what_was_given_up_close_no_stream() -> None:
    stream = ScriptedStream()
    stream.hello()
    connection = await open_connection(stream)
    await stream.heard("hello")
    for _ in range(MAX_UNASKED + 100):
        stream.say({"t": "pong", "id": 10**6})
        asking = asyncio.create_task(connection.ask("ping"))
        stream.say({"t": "pong", "id": (await stream.heard("ping")).header["id"]})
        await asking
    assert not connection.closed
    await connection.close()


@pytest.mark.parametrize("header", [b"[]", b"[" + b"[]," * 80_000 + b"[]]", b'"x"', b"1", b""])
def test_header_that_is_no_object_is_refused_before_it_is_parsed(
    header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(_: object) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(json, "loads", parsed)
    wire = len(header).to_bytes(4, "big") + bytes(4) + header
    with pytest.raises(FrameError, match="not an object"):
        list(Decoder().feed(wire))


async def test_form_of_a_value_is_sized_once_and_a_second_one_never(monkeypatch: pytest.MonkeyPatch) -> None:
    sized = []

    def counted(text: str) -> int:
        sized.append(text)
        return json_size(text)

    monkeypatch.setattr(recorder, "json_size", counted)
    kept = recorder.Recorder(0)
    for mime in ("text/plain", "text/html", "text/html"):
        kept.result(mime, b"x" * 1000)
    kept.display("text/html", 0, b"x" * 1000)
    assert len(sized) == 3


async def test_run_whose_stream_is_flooded_is_lost_and_told_why(
    alice: Caller, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    async def hostile(_: str) -> ScriptedStream:
        opened.append(stream := ScriptedStream())
        stream.hello(languages={"python": "3.11"})
        write = stream.write

        async def answer(data: bytes) -> None:
            await write(data)
            if b'"t":"run"' in data:
                stream.say_raw(encode({}) * FLOOD)

        stream.write = answer  # type: ignore[method-assign]
        return stream

    monkeypatch.setattr(place.backend, "open_stream", hostile)
    result = await alice.python("print(1)")
    assert result.outcome == "sandbox_lost"
    assert "it sent too many frames that nobody asked for" in (result.hint or "")
    assert len(opened) == 1


def _answering(place: Place, monkeypatch: pytest.MonkeyPatch, step: int) -> list[int]:
    """Have all streams lead to a runner that answers each `tail` at once, `step` bytes further; return the cursors."""
    asked: list[int] = []

    async def hostile(_: str) -> ScriptedStream:
        stream = ScriptedStream()
        stream.hello(languages={"python": "3.11"})
        write, decoder = stream.write, Decoder()

        async def answer(data: bytes) -> None:
            await write(data)
            for frame in decoder.feed(data):
                number = frame.header.get("id")
                if frame.kind == "ping":
                    stream.say({"t": "pong", "id": number})
                if frame.kind == "tail":
                    asked.append(frame.header["cursor"])
                    pieces = [["stdout", step]] if step else []
                    told = {"state": "live", "cursor": asked[-1] + step, "pieces": pieces}
                    stream.say({"t": "reply", "id": number, **told}, b"x" * step)

        stream.write = answer  # type: ignore[method-assign]
        return stream

    monkeypatch.setattr(place.backend, "open_stream", hostile)
    monkeypatch.setattr("sandpod_gateway.mcp.tools.runs.current_owner", lambda: "alice")
    return asked


async def test_runner_that_does_not_wait_is_asked_at_the_gateways_pace(
    alice: Caller, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "SOON", PATIENCE)
    monkeypatch.setattr(tail, "PAUSE", PATIENCE)
    sandbox = (await alice.call("create_sandbox"))["sandbox"]
    asked = _answering(place, monkeypatch, step=0)
    reading = await alice.call("read_run", run_id=run_id(sandbox, new_run()), wait=0.5)
    assert reading["state"] == "running"
    assert asked in ([0], [0, 0])  # on a busy machine the time may be over after the first


async def test_stopping_a_run_reads_no_more_than_a_runner_keeps(
    alice: Caller, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "STOP_WAIT", 0)
    sandbox = (await alice.call("create_sandbox"))["sandbox"]
    asked = _answering(place, monkeypatch, step=protocol.FILE_PART)
    stopped = await alice.call("stop_run", run_id=run_id(sandbox, new_run()))
    assert stopped["state"] == "running"
    assert asked == [number * protocol.FILE_PART for number in range(tail.AT_ONCE)]
    assert len(stopped["stdout"]) < 25_000


async def test_call_that_is_cancelled_while_its_run_begins_does_not_keep_the_sandbox_busy(
    alice: Caller, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = (await alice.call("create_sandbox"))["sandbox"]
    _answering(place, monkeypatch, step=0)
    sandboxes = place.gateway._sandboxes
    request = RunRequest(language="python", code="1")
    starting = asyncio.create_task(BackgroundRuns(sandboxes, RunLimits()).start("alice", request, sandbox=sandbox))
    await until(lambda: sandboxes.running(sandbox) == 1)
    starting.cancel()
    await asyncio.wait([starting])
    assert sandboxes.running(sandbox) == 0
