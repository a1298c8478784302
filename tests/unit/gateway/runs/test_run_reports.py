"""What a reading of a run tells, and from where the next one goes on."""

from typing import Any

from sandpod_gateway.runs.reports import run_output
from sandpod_runner.protocol.frames import Frame

LIMIT = 1000


def tail(data: bytes, **fields: Any) -> Frame:
    pieces = [["stdout", len(data)]] if data else []
    return Frame({"t": "ok", "state": "live", "cursor": len(data), "pieces": pieces, **fields}, data)


def test_half_a_character_and_half_a_sequence_wait_for_the_rest() -> None:
    output = run_output(tail("ab€".encode()[:-1]), "sbx.run", LIMIT)
    assert (output.stdout, output.cursor) == ("ab", 2)
    output = run_output(tail(b"ab\x1b[3"), "sbx.run", LIMIT, strip_ansi=True)
    assert (output.stdout, output.cursor) == ("ab", 2)
    output = run_output(tail(b"ab\x1b[3"), "sbx.run", LIMIT)
    assert (output.stdout, output.cursor) == ("ab\x1b[3", 5)


def test_sequences_are_stripped_from_a_reading() -> None:
    output = run_output(tail(b"\x1b[1mbold\x1b[0m"), "sbx.run", LIMIT, strip_ansi=True)
    assert (output.stdout, output.cursor) == ("bold", 12)
