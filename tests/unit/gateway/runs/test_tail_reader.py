"""What a reading of a run's output gives, and from where the next one goes on."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from sandpod_gateway.runs import tail
from sandpod_gateway.runs.recorder import Recorder
from sandpod_gateway.runs.tail import TailReader
from sandpod_runner.protocol.frames import Frame

LIMIT = 1000
END = {"outcome": "ok", "exit_code": 0}


class Runner:
    """Answers each `tail` at once, with the next of its pieces, which come as one log; then with nothing.

    Args:
        pieces: What each answer holds.
        ended: Whether the run has ended.
    """

    def __init__(self, pieces: Iterable[tuple[str, bytes]], *, ended: bool = False) -> None:
        self.log = [(stream, bytes([byte])) for stream, data in pieces for byte in data]
        self.sizes = [len(data) for _, data in pieces]
        self.ended = ended
        self.asked: list[dict[str, Any]] = []

    async def ask(self, kind: str, fields: dict[str, Any]) -> Frame:
        assert kind == "tail"
        self.asked.append(fields)
        start = fields["cursor"]
        size = min(self.sizes.pop(0) if self.sizes else 0, fields["limit"])
        part = self.log[start : start + size]
        end = None
        if self.ended:
            counts = {f"{name}_bytes": sum(s == name for s, _ in self.log) for name in ("stdout", "stderr")}
            end = {**END, **counts}
        told = {"state": "ended" if self.ended else "live", "cursor": start + len(part), "end": end}
        pieces = [[stream, 1] for stream, _ in part]
        return Frame({"t": "reply", **told, "pieces": pieces}, b"".join(byte for _, byte in part))


async def read(
    runner: Runner, *, to_end: bool = False, limit: int = LIMIT, wait: float = 0, strip_ansi: bool = False
) -> TailReader:
    recorder = Recorder(100_000, strip_ansi=strip_ansi)
    reader = TailReader(cast("Any", runner), "run-1", 0, recorder)
    await reader.read(limit, asyncio.get_running_loop().time() + wait, to_end=to_end)
    return reader


def text(reader: TailReader) -> tuple[str, str]:
    stdout, stderr = (stream.read().text for stream in reader.recorder.streams.values())
    return stdout, stderr


async def test_half_a_character_and_half_a_sequence_wait_for_the_rest() -> None:
    for data, strip_ansi in (("ab€".encode()[:-1], False), (b"ab\x1b[3", True)):
        reader = await read(Runner([("stdout", data)]), strip_ansi=strip_ansi)
        assert (text(reader), reader.cursor, reader.ended) == (("ab", ""), 2, None)
    reader = await read(Runner([("stdout", b"ab\x1b[3")]))
    assert (text(reader), reader.cursor) == (("ab\x1b[3", ""), 5)


@pytest.mark.parametrize("ended", [True, False])
async def test_half_a_sequence_of_the_other_stream_is_not_lost(*, ended: bool) -> None:
    runner = Runner([("stdout", b"ab\x1b[3"), ("stderr", b"e")], ended=ended)
    runner.sizes = [6]
    assert text(await read(runner, strip_ansi=True)) == ("ab\x1b[3", "e")


async def test_sequence_longer_than_what_is_asked_for_does_not_keep_the_cursor_where_it_is() -> None:
    reader = await read(Runner([("stdout", b"\x1b]" + b"9" * 300)]), limit=100, strip_ansi=True)
    assert reader.cursor == 100


async def test_reading_until_there_is_output_returns_with_the_first() -> None:
    runner = Runner([("stdout", b"a\n"), ("stderr", b"b\n")])
    reader = await read(runner, wait=60)
    assert (text(reader), reader.cursor, len(runner.asked)) == (("a\n", ""), 2, 1)


async def test_reading_until_the_end_gathers_all_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "PAUSE", 0)
    runner = Runner([("stdout", b"a\n"), ("stderr", b"b\n"), ("stdout", b"c\n")])
    ask = runner.ask

    async def ending(kind: str, fields: dict[str, Any]) -> Frame:
        runner.ended = len(runner.asked) > 5
        return await ask(kind, fields)

    monkeypatch.setattr(runner, "ask", ending)
    reader = await read(runner, to_end=True, wait=60)
    assert (text(reader), reader.state) == (("a\nc\n", "b\n"), "ended")
    assert reader.ended is not None


async def test_run_that_has_ended_is_read_to_its_end_however_small_its_pieces_are() -> None:
    data = "é".encode() * 500
    runner = Runner([("stdout", bytes([byte])) for byte in data], ended=True)
    runner.sizes = [50] * 20
    reader = await read(runner, to_end=True)
    assert (text(reader), len(runner.asked)) == (("é" * 500, ""), 20)
    assert reader.ended is not None


async def test_ended_run_whose_rest_did_not_fit_has_not_been_read_to_its_end() -> None:
    runner = Runner([("stdout", b"x" * 150)], ended=True)
    runner.sizes = [100, 50]
    first = await read(runner, limit=100)
    assert (first.state, first.ended, first.cursor) == ("ended", None, 100)


async def test_runner_that_never_comes_to_an_end_is_asked_a_bounded_number_of_times() -> None:
    for ended in (False, True):
        runner = Runner([("stdout", b"x" * 100)] * 1000, ended=ended)
        reader = await read(runner, to_end=True, limit=100)
        assert (len(runner.asked), reader.ended) == (tail.AT_ONCE, None)


async def test_runner_with_little_to_say_is_asked_at_the_gateways_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "SOON", 60)
    monkeypatch.setattr(tail, "PAUSE", 60)
    runner = Runner([("stdout", b"x")] * 1000)
    reader = await read(runner, to_end=True, wait=0.01)
    # Once, and a last time; on a busy machine the time may be over after the first.
    assert 1 <= len(runner.asked) == reader.cursor <= 2


async def test_cursor_that_makes_no_sense_is_none_that_is_below_the_beginning() -> None:
    runner = Runner([("stdout", b"ab\xe2")])
    ask = runner.ask

    async def odd(kind: str, fields: dict[str, Any]) -> Frame:
        frame = await ask(kind, fields)
        return Frame({**frame.header, "cursor": 0}, frame.payload)

    runner.ask = odd  # type: ignore[method-assign]
    assert (await read(runner)).cursor == 0
