import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from sandpod_api.run_results import Language, Outcome
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.runner_messages import Ended
from sandpod_gateway.running import MAX_PICTURES, MAX_RICH, Running, RunRequest

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


def running(cap: int = 100_000) -> Running:
    return Running(RECORD, RunRequest(language=Language.PYTHON, code="1"), "run-1", cap)


@given(st.binary(min_size=1, max_size=200), st.lists(st.tuples(st.integers(0, 199), st.integers(1, 200)), max_size=12))
def test_pieces_that_come_twice_are_taken_once(data: bytes, spans: list[tuple[int, int]]) -> None:
    run = running()
    for start, size in spans:
        begin = min(start, run.received["stdout"])
        run.output("stdout", begin, data[begin : begin + size])
    have = run.received["stdout"]
    assert run.answer(OK).result.stdout == data[:have].decode("utf-8", "replace")


def test_output_that_was_lost_is_said() -> None:
    run = running()
    run.output("stderr", 0, b"abc")
    run.output("stderr", 10, b"xyz")
    result = run.answer(OK.model_copy(update={"stderr_bytes": 13})).result
    assert result.stderr == "abc\n[... 7 bytes lost ...]\nxyz"
    assert run.received["stderr"] == 13


def test_pictures_go_beside_the_result_and_other_forms_into_it() -> None:
    run = running()
    run.display("image/png", b"PNG")
    run.display("text/html", b"<b>hi</b>")
    run.result("text/plain", b"42")
    answer = run.answer(OK)
    assert [(picture.mime_type, picture.data) for picture in answer.pictures] == [("image/png", b"PNG")]
    assert [(rich.mime_type, rich.text) for rich in answer.result.displays] == [
        ("image/png", None),
        ("text/html", "<b>hi</b>"),
    ]
    assert answer.result.result == {"text/plain": "42"}


def test_what_is_shown_is_bounded_and_the_rest_is_counted() -> None:
    run = running()
    for _ in range(5):
        run.display("image/png", b"x" * (MAX_PICTURES // 2))
        run.display("text/html", b"x" * (MAX_RICH // 2))
        run.result("text/html", b"x" * MAX_RICH)
    answer = run.answer(OK.model_copy(update={"displays_dropped": 7}))
    assert len(answer.pictures) == 2
    assert answer.result.displays_dropped == 7 + 3 + 3 + 5


def test_an_answer_with_pictures_stays_below_what_clients_take() -> None:
    run = running()
    run.display("image/png", b"x" * MAX_PICTURES)
    run.output("stdout", 0, b"\x01" * 100_000)
    run.output("stderr", 0, b'"' * 100_000)
    answer = run.answer(OK)
    text = answer.result.model_dump_json()
    assert len(text) + len(json.dumps(text)) + 4 * MAX_PICTURES // 3 < 2**20
    assert answer.result.stdout_truncated


def test_control_sequences_are_stripped_where_that_is_asked_for_and_bytes_are_counted_as_written() -> None:
    request = RunRequest(language=Language.PYTHON, code="1", strip_ansi=True)
    run = Running(RECORD, request, "run-1", 100_000)
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
