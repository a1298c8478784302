"""What is recorded of a run and read of it later, with the values of secrets masked wherever a reading begins."""

import asyncio
from typing import Any, Final, cast

import pytest

from sandpod_gateway.masking.masker import Masker
from sandpod_gateway.runs.progress import OutputStream
from sandpod_gateway.runs.recorder import Recorder
from sandpod_gateway.runs.tail import TailReader
from sandpod_runner.protocol.frames import Frame

VALUE: Final = b"s3cr3t-value-0123456789"
MASK: Final = "[secret TOKEN]"
MASKER: Final = Masker([("TOKEN", VALUE.decode())])


def recorded(*pieces: bytes, cap: int = 10_000, strip_ansi: bool = False) -> Recorder:
    recorder = Recorder(cap, masker=MASKER, strip_ansi=strip_ansi)
    for piece in pieces:
        recorder.output("stdout", recorder.streams["stdout"].received, piece)
    recorder.finish()
    return recorder


@pytest.mark.promise("secret-split")
def test_output_is_masked_before_it_is_cut_and_counted_as_the_program_wrote_it() -> None:
    single = recorded(*(bytes([byte]) for byte in b"a " + VALUE + b" z"))
    assert single.streams["stdout"].read().text == f"a {MASK} z"
    assert single.streams["stdout"].received == len(VALUE) + 4
    for size in range(40, 80):
        shown = recorded(b"x" * 20 + VALUE + b"y" * size, cap=60).streams["stdout"].read()
        assert VALUE.decode()[:6] not in shown.text
        assert VALUE.decode()[-6:] not in shown.text


def test_sequences_that_are_taken_out_of_a_value_do_not_hide_it() -> None:
    split = VALUE[:5] + b"\x1b[31m" + VALUE[5:]
    assert recorded(split, strip_ansi=True).streams["stdout"].read().text == MASK
    assert recorded(split[:7], split[7:], strip_ansi=True).streams["stdout"].read().text == MASK


def test_what_a_program_shows_is_masked_and_pictures_are_not() -> None:
    recorder = Recorder(1000, masker=MASKER)
    recorder.display("text/html", 0, b"<b>" + VALUE + b"</b>")
    recorder.display("image/png", 1, VALUE)
    recorder.result("text/plain", b"x" * 32 * 1024 + VALUE)
    recorder.result("application/json", b'"' + VALUE + b'"')
    assert recorder.displays[0].text == f"<b>{MASK}</b>"
    assert recorder.pictures[0].data == VALUE
    assert recorder.value["application/json"] == f'"{MASK}"'
    assert VALUE.decode()[:4] not in recorder.value["text/plain"]


async def test_progress_shows_no_value() -> None:
    sent: list[str] = []

    async def send(_: int, text: str) -> None:
        sent.append(text)

    progress = OutputStream(send)
    recorder = Recorder(1000, masker=MASKER, progress=progress)
    recorder.output("stdout", 0, b"x" * 20_000 + VALUE[:9])
    recorder.output("stdout", 20_009, VALUE[9:] + b"\n")
    recorder.finish()
    await progress.finish()
    assert "".join(sent) == "x" * 20_000 + MASK + "\n"


class Runner:
    """Has a log of pieces of both streams, and answers each `tail` with what is asked for of it."""

    def __init__(self, *pieces: tuple[str, bytes]) -> None:
        self.log = [(stream, bytes([byte])) for stream, data in pieces for byte in data]
        self.asked: list[int] = []

    async def ask(self, _: str, fields: dict[str, Any]) -> Frame:
        start = fields["cursor"]
        self.asked.append(start)
        part = self.log[start : start + fields["limit"]]
        header = {"t": "reply", "state": "live", "cursor": start + len(part), "pieces": [[name, 1] for name, _ in part]}
        return Frame(header, b"".join(byte for _, byte in part))


async def read(runner: Runner, cursor: int, limit: int, masker: Masker | None = MASKER) -> TailReader:
    reader = TailReader(cast("Any", runner), "run-1", cursor, Recorder(10_000, masker=masker))
    await reader.read(limit, asyncio.get_running_loop().time(), to_end=False)
    return reader


def texts(reader: TailReader) -> tuple[str, str]:
    stdout, stderr = (stream.read().text for stream in reader.recorder.streams.values())
    return stdout, stderr


@pytest.mark.promise("secret-split")
async def test_readings_show_no_value_wherever_they_begin_and_end() -> None:
    runner = Runner(("stdout", b"before " + VALUE + b" after\n"))
    for limit in range(1, len(runner.log)):
        shown, cursor = "", 0
        while cursor < len(runner.log):
            reader = await read(runner, cursor, limit)
            shown, cursor = shown + texts(reader)[0], reader.cursor
        left = shown.replace(MASK, "")
        assert left.startswith("before ")
        assert left.endswith(" after\n")
        assert left.removeprefix("before ").removesuffix(" after\n") in {"", *(VALUE.decode()[:n] for n in range(4))}


async def test_value_between_whose_pieces_the_other_stream_was_written_is_masked_too() -> None:
    runner = Runner(("stdout", VALUE[:10]), ("stderr", b"noise\n"), ("stdout", VALUE[10:] + b"\n"))
    assert texts(await read(runner, 12, 100)) == (f"{MASK}\n", "ise\n")
    assert texts(await read(runner, 0, 100)) == (f"{MASK}\n", "noise\n")
    assert texts(await read(runner, 0, 12)) == (MASK, "no")


async def test_without_secrets_nothing_before_the_cursor_is_read() -> None:
    runner = Runner(("stdout", b"0123456789"))
    assert texts(await read(runner, 4, 100, masker=None)) == ("456789", "")
    assert runner.asked == [4]


async def test_runner_that_answers_with_more_than_it_was_asked_for_hides_nothing() -> None:
    """A runner drops the oldest output, so that an answer may begin later than asked for and go past the cursor."""

    class Dropping(Runner):
        async def ask(self, kind: str, fields: dict[str, Any]) -> Frame:
            return await super().ask(kind, {**fields, "cursor": max(5, fields["cursor"])})

    runner = Dropping(("stdout", b"01234abcdefghij"))
    assert texts(await read(runner, 8, 100)) == ("defghij", "")
