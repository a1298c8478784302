import base64
import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from sandpod_gateway.api.run_results import Language, Outcome, RunOutput, RunResult
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.content import MAX_PICTURES, Answer, Picture, json_size
from sandpod_gateway.mcp.tool_results import text_of
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.runner.messages import ArtifactEntry, Ended
from sandpod_gateway.runs.progress import MAX_MESSAGE
from sandpod_gateway.runs.recorder import MAX_SHOWN, MAX_TEXT, MAX_VALUE, Recorder
from sandpod_gateway.runs.request import ActiveRun, RunRequest
from sandpod_gateway.runs.result import RunEnd, answer_size, build_answer, build_reading
from sandpod_gateway.runs.service import Runs
from sandpod_gateway.settings import LimitSettings
from sandpod_runner.protocol import messages as protocol

RECORD = SandboxRecord(
    name="sbx-a",
    owner="alice",
    session="",
    template="default",
    network="none",
    status="Ready",
    created=datetime(2026, 1, 1, tzinfo=UTC),
    ttl=60,
    idle_timeout=60,
)
OK = Ended(outcome=Outcome.OK, exit_code=0, duration_ms=1)


class Run(Recorder):
    """A run that can end."""

    def end(self, ended: Ended) -> RunEnd:
        return RunEnd(sandbox=RECORD.name, run="run-1", recorder=self, ended=ended)

    def answer(self, ended: Ended) -> Answer[RunResult]:
        return build_answer(self.end(ended), 200_000)

    def reading(self, ended: Ended) -> Answer[RunOutput]:
        output = RunOutput(run_id="sbx-a.run-1", sandbox=RECORD.name, state="ended")
        return build_reading(output, self, self.end(ended), 200_000)


def running(cap: int = 100_000, *, strip_ansi: bool = False) -> Run:
    return Run(cap, strip_ansi=strip_ansi)


@given(st.binary(min_size=1, max_size=200), st.lists(st.tuples(st.integers(0, 199), st.integers(1, 200)), max_size=12))
def test_pieces_that_come_twice_are_taken_once(data: bytes, spans: list[tuple[int, int]]) -> None:
    run = running()
    for start, size in spans:
        begin = min(start, run.streams["stdout"].received)
        run.output("stdout", begin, data[begin : begin + size])
    have = run.streams["stdout"].received
    assert run.answer(OK).result.stdout == data[:have].decode("utf-8", "replace")


def test_output_that_was_lost_is_said() -> None:
    run = running()
    run.output("stderr", 0, b"abc")
    run.output("stderr", 10, b"xyz")
    result = run.answer(OK.model_copy(update={"stderr_bytes": 13})).result
    assert result.stderr == "abc\n[... 7 bytes lost ...]\nxyz"
    assert run.streams["stderr"].received == 13


@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.integers(0, 2**62), st.binary(max_size=9))))
def test_what_a_sandbox_says_of_offsets_is_not_counted_as_output(frames: list[tuple[str, int, bytes]]) -> None:
    run = running()
    for stream, offset, data in frames:
        run.output(stream, offset, data)
    for stream in ("stdout", "stderr"):
        assert 0 <= run.streams[stream].taken <= sum(len(data) for name, _, data in frames if name == stream)
    run.output("stdout", 2**62, b"abc")
    assert run.streams["stdout"].received >= 2**62
    assert run.streams["stdout"].taken <= sum(len(data) for name, _, data in frames if name == "stdout") + 3


def test_a_sandbox_does_not_spoil_the_metric_of_output_and_a_run_is_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    metrics, run = Metrics(), running()
    run.output("stdout", 2**62, b"abc")
    runs = Runs(cast("Any", None), LimitSettings(), metrics, cast("Any", None))
    runs._count(ActiveRun(record=RECORD, request=RunRequest(language=Language.PYTHON, code="1"), recorder=run), "ok")
    assert metrics.registry.get_sample_value("sandpod_output_bytes_total", {"stream": "stdout"}) == 3
    [line] = caplog.messages
    assert re.fullmatch(r"run sbx-a\.run-\w{16} ended: owner alice, python, ok, \d+\.\d{3} s", line)


def sent(answer: Answer[RunResult]) -> int:
    """Return the bytes of an answer on the wire."""
    return sent_as(answer.result, answer.pictures)


def sent_as(model: BaseModel, pictures: list[Picture]) -> int:
    """Return the bytes of structured content, text and pictures, with all that is not ASCII escaped."""
    content = [text_of(model), *(base64.b64encode(picture.data).decode() for picture in pictures)]
    return len(json.dumps([model.model_dump(mode="json"), *content]))


@settings(deadline=None)
@given(st.text(), st.text(), st.text(min_size=1), st.text())
def test_size_of_an_answer_is_not_below_what_is_sent(out: str, err: str, path: str, value: str) -> None:
    run = running()
    run.output("stdout", 0, out.encode("utf-8", "replace"))
    run.output("stderr", 0, err.encode("utf-8", "replace"))
    run.result("text/plain", value.encode("utf-8", "replace"))
    run.display("text/html", 0, value.encode("utf-8", "replace"))
    run.display("image/png", 1, out.encode("utf-8", "replace"))
    ended = OK.model_copy(update={"artifacts": [ArtifactEntry(path=path)] * 3})
    for model, pictures in (
        (run.answer(ended).result, run.answer(ended).pictures),
        (run.reading(ended).result, run.reading(ended).pictures),
    ):
        assert answer_size(model, pictures) >= sent_as(model, pictures) - 100, "but for brackets and commas"


@given(st.text(min_size=1))
def test_progress_message_of_any_text_is_below_what_clients_take(text: str) -> None:
    message = (text * (MAX_MESSAGE // len(text) + 1))[:MAX_MESSAGE]
    assert json_size(message) + 4096 < 2**20


def pictures_size(answer: Answer[RunResult]) -> int:
    return sum(len(picture.data) for picture in answer.pictures)


def test_pictures_go_beside_the_result_and_other_forms_into_it() -> None:
    run = running()
    run.display("image/png", 0, b"PNG")
    run.display("text/plain", 1, b"hi")
    run.display("text/html", 1, b"<b>hi</b>")
    run.result("text/plain", b"42")
    run.result("image/png", b"value")
    answer = run.answer(OK)
    pictures = [(picture.mime_type, picture.data) for picture in answer.pictures]
    assert pictures == [("image/png", b"PNG"), ("image/png", b"value")]
    assert [(rich.index, rich.mime_type, rich.text) for rich in answer.result.displays] == [
        (0, "image/png", None),
        (1, "text/plain", "hi"),
        (1, "text/html", "<b>hi</b>"),
        (2, "image/png", None),
    ]
    assert answer.result.result == {"text/plain": "42"}
    assert answer.result.hint is None


def test_what_is_shown_is_bounded_and_the_rest_is_counted_and_said() -> None:
    run = running()
    for _ in range(5):
        run.display("image/png", 0, b"x" * (MAX_PICTURES // 2))
        run.display("text/html", 0, b"x" * (MAX_SHOWN // 5))
        run.result("text/html", b"x" * MAX_VALUE)
    answer = run.answer(OK.model_copy(update={"displays_dropped": 7}))
    assert len(answer.pictures) == 2
    assert answer.result.displays_dropped == 7 + 3 + 3 + 5
    assert (answer.result.hint or "").startswith("18 things that it showed were too much")


@pytest.mark.parametrize("character", ["x", "ü", "\x01"])
def test_long_text_of_a_value_is_cut_and_leaves_room_for_another_form(character: str) -> None:
    run = running()
    run.result("text/plain", (character * 1_000_000).encode())
    run.result("text/html", b"<table></table>")
    value = run.answer(OK).result.result or {}
    assert value["text/plain"].startswith(character * 1000)
    assert len(value["text/plain"]) <= MAX_TEXT + 100
    assert value["text/plain"].endswith(f"{character}... ({len((character * 1_000_000).encode())} bytes in all)")
    assert value["text/html"] == "<table></table>"


def test_forms_without_end_and_of_unknown_types_are_counted() -> None:
    run = running()
    for i in range(1000):
        run.display("text/html", i, b"")
        run.display("image/png", i, b"")
        run.result(f"text/x-{i}", b"")
        run.result("text/html", b"")
    answer = run.answer(OK)
    assert len(answer.result.displays) <= protocol.MAX_DISPLAYS + 1
    assert answer.result.displays_dropped + len(answer.result.displays) == 4000 - 1
    assert answer.result.result == {"text/html": ""}


_TYPES = st.sampled_from(["image/png", *protocol.MIME_TYPES])
_BYTES = st.sampled_from([b"x", b'"', b"\x01", "😀".encode(), b"\xff", b"\n\\"])


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), _TYPES, _BYTES, st.integers(0, MAX_PICTURES)), max_size=40), _BYTES)
def test_an_answer_stays_below_what_clients_take_whatever_is_shown(
    shown: list[tuple[bool, str, bytes, int]], output: bytes
) -> None:
    run = running()
    for last, mime, unit, size in shown:
        data = unit * (size // len(unit))
        if last:
            run.result(mime, data)
        else:
            run.display(mime, 0, data)
    run.output("stdout", 0, output * 60_000)
    run.output("stderr", 0, output * 60_000)
    assert sent(run.answer(OK)) < 2**20


def test_an_answer_with_all_that_may_be_shown_stays_below_what_clients_take() -> None:
    run = running()
    run.display("image/png", 0, b"x" * MAX_PICTURES)
    for unit in (b"\x01", b'"', b"x"):
        for size in (MAX_SHOWN, MAX_SHOWN // 4, MAX_SHOWN // 15, MAX_SHOWN // 60):
            run.display("text/html", 1, unit * size)
            run.result("text/html", unit * size)
    run.result("text/plain", b"\x01" * 100_000)
    run.output("stdout", 0, b"\x01" * 100_000)
    run.output("stderr", 0, b'"' * 100_000)
    answer = run.answer(OK)
    assert pictures_size(answer) == MAX_PICTURES
    assert sent(answer) < 2**20
    assert answer.result.stdout_truncated


def test_what_was_read_of_a_background_run_stays_below_what_clients_take_with_what_it_showed() -> None:
    run = running()
    for _ in range(4):
        run.display("image/png", 0, b"x" * (MAX_PICTURES // 4))
        run.display("text/html", 0, b"\x01" * (MAX_SHOWN // 60))
    reading = run.reading(OK)
    assert reading.result.result is not None
    assert reading.result.result.displays_dropped == 0
    run.output("stdout", 0, b"\x01" * 48 * 1024)
    reading = run.reading(OK)
    assert sent_as(reading.result, reading.pictures) < 2**20
    assert reading.result.result is not None
    shown, dropped = reading.result.result.displays, reading.result.result.displays_dropped
    assert (len(shown) + dropped, len([rich for rich in shown if rich.text is None])) == (8, len(reading.pictures))


def test_an_answer_names_as_many_displays_and_files_as_fit_and_counts_the_others() -> None:
    run = running()
    for index in range(30):
        run.display("text/html", index, b"\x01" * (MAX_SHOWN // 60))
    run.display("image/png", 30, b"x" * MAX_PICTURES)
    entries = [ArtifactEntry(path="\x01" * 3900 + str(number)) for number in range(100)]
    answer = run.answer(OK.model_copy(update={"artifacts": entries, "artifacts_more": 5}))
    assert sent(answer) < 2**20
    result = answer.result
    assert 0 < len(result.artifacts) < 100
    assert len(result.artifacts) + result.artifacts_omitted == 105
    assert len(result.displays) + result.displays_dropped == 31
    assert len(answer.pictures) == sum(rich.text is None for rich in result.displays)
    assert f"{result.displays_dropped} things" in (result.hint or "")


def test_control_sequences_are_stripped_where_that_is_asked_for_and_bytes_are_counted_as_written() -> None:
    run = running(strip_ansi=True)
    written = b"\x1b[31mred\x1b[0m\n"
    run.output("stdout", 0, written[:3])
    run.output("stdout", 3, written[3:])
    result = run.answer(OK.model_copy(update={"stdout_bytes": len(written)})).result
    assert (result.stdout, result.stdout_bytes, result.stdout_truncated) == ("red\n", len(written), False)
    kept = running()
    kept.output("stdout", 0, written)
    assert kept.answer(OK).result.stdout == written.decode()


def test_stream_that_has_a_gap_counts_as_cut_even_where_the_note_about_it_is_longer() -> None:
    run = running()
    run.output("stdout", 1, b"bc")
    result = run.answer(OK.model_copy(update={"stdout_bytes": 3})).result
    assert (result.stdout_bytes, result.stdout_truncated) == (3, True)
