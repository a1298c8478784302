import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.connection import RunnerConnection, open_connection
from sandpod_gateway.runner.demux import ACK_EVERY, ConnectionLostError
from sandpod_runner.protocol import messages as protocol
from support.gateway.peers import ScriptedStream, Sink, until


async def connect(**hello: Any) -> tuple[ScriptedStream, RunnerConnection]:
    stream = ScriptedStream()
    stream.hello(**hello)
    connection = await open_connection(stream)
    await stream.heard("hello")
    return stream, connection


def header(run: str = "r1") -> dict[str, Any]:
    return {"run": run, "language": "python", "args": [], "env": {}, "cwd": ".", "stdin": False, "timeout": 5}


async def test_a_runner_of_another_version_is_refused() -> None:
    with pytest.raises(ConnectionLostError, match="version 2"):
        await connect(version=2)


@pytest.mark.parametrize("raw", [b"", b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n"])
async def test_what_is_no_runner_is_refused(raw: bytes) -> None:
    stream = ScriptedStream()
    stream.say_raw(raw)
    with pytest.raises(ConnectionLostError):
        await open_connection(stream)
    assert stream.closed


async def test_a_hello_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConnectionLostError):
        await connect(languages=["python"])


async def test_output_and_end_reach_the_run_they_belong_to() -> None:
    stream, connection = await connect()
    sinks = {"a": Sink(), "b": Sink()}
    runs = [await connection.start_run(header(name), b"1", sink) for name, sink in sinks.items()]
    assert len(connection.runs) == 2
    stream.say({"t": "out", "run": "b", "stream": "stderr", "offset": 0}, b"B")
    stream.say({"t": "out", "run": "a", "stream": "stdout", "offset": 0}, b"A")
    stream.say({"t": "display", "run": "a", "mime": "image/png", "index": 0}, b"P")
    stream.say({"t": "result", "run": "b", "mime": "text/plain"}, b"42")
    for name in sinks:
        stream.say({"t": "end", "run": name, "outcome": "ok", "exit_code": 0})
    assert [(await run.ended).outcome for run in runs] == ["ok", "ok"]
    assert sinks["a"].got == [("stdout", b"A"), ("display 0 image/png", b"P")]
    assert sinks["b"].got == [("stderr", b"B"), ("result text/plain", b"42")]
    assert len(connection.runs) == 0
    await connection.close()


@pytest.mark.parametrize(
    "frame",
    [
        {"t": "out", "run": ["x"], "stream": "stdout"},
        {"t": "out", "run": "r1", "stream": "../etc", "offset": 0},
        {"t": "out", "run": "r1", "stream": ["stdout"], "offset": 0},
        {"t": "out", "run": "r1", "stream": "stdout", "offset": -1},
        {"t": "out", "run": "r1", "stream": "stdout", "offset": 10**30},
        {"t": "out", "run": "r1", "stream": "stdout", "offset": "0"},
        {"t": "display", "run": "r1", "mime": "x" * 65, "index": 0},
        {"t": "display", "run": "r1", "mime": "image/png"},
        {"t": "display", "run": "r1", "mime": "image/png", "index": 10**30},
        {"t": "result", "run": "r1", "mime": ["text/plain"]},
        {"t": "out", "run": "unknown", "stream": "stdout"},
        {"t": "end", "run": {"a": 1}},
        {"t": "reply", "id": "1"},
        {"t": "reply", "id": 10**30},
        {"t": "error", "id": None, "run": 3},
        {"t": "never heard of"},
        {"t": 7},
        {},
    ],
)
async def test_frames_that_make_no_sense_change_nothing(frame: dict[str, Any]) -> None:
    stream, connection = await connect()
    sink = Sink()
    run = await connection.start_run(header(), b"1", sink)
    stream.say(frame, b"hostile")
    stream.say({"t": "end", "run": "r1", "outcome": "ok", "exit_code": 0})
    assert (await run.ended).exit_code == 0
    assert sink.got == []
    await connection.close()


@pytest.mark.parametrize(
    "end",
    [
        {"outcome": "splendid"},
        {"outcome": "ok", "exit_code": 10**40},
        {"outcome": "ok", "cpu_ms": -1},
        {"outcome": "ok", "duration_ms": 1e300},
        {"outcome": "error", "signal": "<script>"},
        {"outcome": "ok", "detail": "x" * 5000},
    ],
)
async def test_an_end_that_makes_no_sense_is_no_success(end: dict[str, Any]) -> None:
    stream, connection = await connect()
    run = await connection.start_run(header(), b"1", Sink())
    stream.say({"t": "end", "run": "r1", **end})
    with pytest.raises(ConnectionLostError):
        await run.ended
    await connection.close()


@pytest.mark.parametrize("name", ["x" * 65, "", "run-1\nrun-2", "a.b", None, 7])
async def test_earlier_run_with_a_name_that_no_run_has_is_no_run(name: object) -> None:
    stream, connection = await connect()
    run = await connection.start_run(header(), b"1", Sink())
    stream.say({"t": "known", "run": "r1", "as": name})
    with pytest.raises(ConnectionLostError):
        await run.accepted
    await connection.close()


async def test_output_that_has_come_is_acknowledged_for_runs_that_ask_for_it() -> None:
    stream, connection = await connect()
    await connection.start_run({**header(), "acks": True}, b"1", Sink())
    await connection.start_run(header("r2"), b"1", Sink())
    for offset in range(0, 2 * ACK_EVERY, ACK_EVERY // 2):
        for run in ("r1", "r2"):
            stream.say({"t": "out", "run": run, "stream": "stderr", "offset": offset}, bytes(ACK_EVERY // 2))
    told = 0
    assert {(await stream.heard("run")).header["run"] for _ in range(2)} == {"r1", "r2"}
    while 2 * ACK_EVERY - told >= ACK_EVERY:  # less than that may stay unacknowledged
        ack = await stream.heard("ack")
        assert (ack.header["run"], ack.header["stdout"]) == ("r1", 0)
        assert told < ack.header["stderr"]
        told = ack.header["stderr"]
    await connection.close()


async def test_a_lost_stream_ends_runs_and_requests() -> None:
    stream, connection = await connect()
    run = await connection.start_run(header(), b"1", Sink())
    asking = asyncio.create_task(connection.ask("file", {"op": "stat", "path": "a"}))
    await stream.heard("run")
    await stream.heard("file")
    stream.say_raw(b"")
    with pytest.raises(ConnectionLostError):
        await run.ended
    with pytest.raises(ConnectionLostError):
        await asking
    assert connection.closed
    with pytest.raises(ConnectionLostError):
        await connection.start_run(header("r2"), b"1", Sink())


async def test_garbage_ends_the_connection() -> None:
    stream, connection = await connect()
    stream.say_raw(b"\xff" * 8)
    await until(lambda: connection.closed)
    assert stream.closed


async def test_a_refused_run_tells_its_code() -> None:
    stream, connection = await connect()
    run = await connection.start_run(header(), b"1", Sink())
    stream.say({"t": "error", "run": "r1", "code": "unsupported_language", "message": "No cobol here."})
    with pytest.raises(SandpodError) as raised:
        await run.ended
    assert raised.value.code == ErrorCode.UNSUPPORTED_LANGUAGE
    await connection.close()


async def test_a_code_that_a_runner_must_not_give_becomes_backend_error() -> None:
    stream, connection = await connect()
    asking = asyncio.create_task(connection.ask("file", {"op": "stat", "path": "a"}))
    frame = await stream.heard("file")
    stream.say({"t": "error", "id": frame.header["id"], "code": "unauthorized", "message": "x" * 9999})
    with pytest.raises(SandpodError) as raised:
        await asking
    assert raised.value.code == ErrorCode.BACKEND_ERROR
    assert len(raised.value.message) <= 300
    await connection.close()


async def test_a_file_is_written_in_parts_of_one_request() -> None:
    stream, connection = await connect()
    parts = [b"a" * protocol.FILE_PART, b"b"]

    async def content() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    writing = asyncio.create_task(connection.upload({"path": "f", "overwrite": True}, content()))
    first, second = await stream.heard("file"), await stream.heard("file")
    assert (first.payload, second.payload) == (parts[0], parts[1])
    assert (first.header["last"], second.header["last"]) == (False, True)
    assert first.header["id"] == second.header["id"]
    stream.say({"t": "reply", "id": first.header["id"], "size": 1})
    assert (await writing).header["size"] == 1
    await connection.close()


async def test_stopping_a_run_waits_for_its_end() -> None:
    stream, connection = await connect()
    run = await connection.start_run(header(), b"1", Sink())
    await stream.heard("run")
    stopping = asyncio.create_task(connection.stop_run("r1", wait=5))
    await stream.heard("cancel")
    assert not stopping.done()
    stream.say({"t": "end", "run": "r1", "outcome": "cancelled"})
    assert await stopping
    assert (await run.ended).outcome == "cancelled"
    assert await connection.stop_run("r1", wait=5)
    await connection.close()


async def test_a_run_that_will_not_end_is_told() -> None:
    _, connection = await connect()
    await connection.start_run(header(), b"1", Sink())
    assert not await connection.stop_run("r1", wait=0)
    await connection.close()


async def test_a_quiet_runner_is_asked_whether_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandpod_gateway.runner.connection.QUIET", 0.01)
    stream, connection = await connect()
    run = await connection.start_run(header(), b"1", Sink())
    await stream.heard("run")
    waiting = asyncio.create_task(connection.wait_for(run.ended))
    for _ in range(2):
        ping = await stream.heard("ping")
        stream.say({"t": "pong", "id": ping.header["id"]})
    stream.say({"t": "end", "run": "r1", "outcome": "ok", "exit_code": 0})
    assert (await waiting).exit_code == 0
    assert not connection.closed
    await connection.close()


async def test_a_runner_is_asked_once_it_is_quiet_for_so_long_and_not_after_twice_that_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    real, skew = loop.time, 0.0  # seconds
    monkeypatch.setattr(loop, "time", lambda: real() + skew)
    monkeypatch.setattr("sandpod_gateway.runner.connection.QUIET", 1000)
    stream, connection = await connect()
    sink = Sink()
    run = await connection.start_run(header(), b"1", sink)
    waiting = asyncio.create_task(connection.wait_for(run.ended))
    await stream.heard("run")
    skew = 1.0
    stream.say({"t": "out", "run": "r1", "stream": "stdout", "offset": 0}, b"a")
    await until(lambda: bool(sink.got))
    skew = 1000.5  # not yet so long after that
    for _ in range(10):
        await asyncio.sleep(0)
    skew = 1002.0
    ping = await stream.heard("ping")
    stream.say({"t": "pong", "id": ping.header["id"]})
    stream.say({"t": "end", "run": "r1", "outcome": "ok", "exit_code": 0})
    assert (await waiting).exit_code == 0
    await connection.close()


async def test_a_stream_that_has_gone_silent_is_closed_and_its_runs_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandpod_gateway.runner.connection.QUIET", 0.01)
    monkeypatch.setattr("sandpod_gateway.runner.connection.PONG_TIMEOUT", 0.01)
    stream, connection = await connect()
    run = await connection.start_run(header(), b"1", Sink())
    with pytest.raises(ConnectionLostError):
        await connection.wait_for(run.ended)
    assert connection.closed
    assert stream.closed


async def test_a_stream_that_the_runner_takes_leave_of_has_ended_though_nothing_else_says_so() -> None:
    stream, connection = await connect()
    run = await connection.start_run(header(), b"1", Sink())
    stream.say({"t": "bye"})
    with pytest.raises(ConnectionLostError):
        await connection.wait_for(run.ended)
    await until(lambda: stream.closed)
    assert connection.closed


async def test_a_request_without_answer_closes_a_silent_stream_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandpod_gateway.runner.connection.QUIET", 0.01)
    stream, connection = await connect()
    asking = asyncio.create_task(connection.ask("file", {"op": "stat", "path": "a"}))
    await stream.heard("file")
    ping = await stream.heard("ping")
    assert not asking.done()
    monkeypatch.setattr("sandpod_gateway.runner.connection.PONG_TIMEOUT", 0.01)
    stream.say({"t": "pong", "id": ping.header["id"]})
    await stream.heard("ping")  # so the answer to the first one kept the stream
    with pytest.raises(ConnectionLostError):
        await asking
    assert connection.closed


async def test_a_stream_that_breaks_is_told_once_and_one_that_is_closed_is_not() -> None:
    told: list[str] = []
    stream, connection = await connect()
    connection.on_broken = lambda: told.append("broken")
    stream.say_raw(b"")
    await until(lambda: connection.closed)
    await connection.close()
    assert told == ["broken"]
    _, connection = await connect()
    connection.on_broken = lambda: told.append("closed")
    await connection.close()
    assert told == ["broken"]
