"""Terminal control sequences are taken out whole, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpod_gateway.runs.recorder import Stream, strip, unfinished_sequence


class Stripper(Stream):
    """A stream that shows no control sequences."""

    def __init__(self) -> None:
        super().__init__(100_000, strip_ansi=True)

    def feed(self, data: bytes) -> bytes:
        return self.take(self.received, data)


SEQUENCES = [
    b"\x1b[0m",
    b"\x1b[1;38;5;196m",
    b"\x1b[?25l",
    b"\x1b[2J",
    b"\x1b[10;20H",
    b"\x1b]0;title\x07",
    b"\x1b]8;;https://example.org\x1b\\",
    b"\x1bP1$r0m\x1b\\",
    b"\x1b(B",
    b"\x1bM",
    b"\x1b7",
    b"\x1b=",
]


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_sequence_goes_and_the_text_around_it_stays(sequence: bytes) -> None:
    assert strip(b"red" + sequence + "grün[0m\r\n\t".encode()) == "redgrün[0m\r\n\t".encode()


@given(
    st.lists(st.sampled_from([*SEQUENCES, b"text ", "é€".encode(), b"\n", b"[31m", b"\x07"]), max_size=12), st.data()
)
def test_pieces_make_no_difference(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    stripper = Stripper()
    shown = b"".join(stripper.feed(whole[a:b]) for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True))
    assert shown + stripper.finish() == strip(whole)
    assert b"\x1b" not in shown


def test_what_is_no_sequence_stays() -> None:
    for data in (b"\x1b[31\n", b"\x1b[1;\xc3\xa9m", b"\x1b]0;" + b"x" * 5000):
        assert strip(data) == data
        assert Stripper().feed(data) == data


def test_sequence_that_never_ends_holds_back_a_bounded_part() -> None:
    stripper = Stripper()
    piece = b"\x1b]" + b"9" * 1000
    shown = [stripper.feed(piece if first else b"9" * 1000) for first in (True, *[False] * 9)]
    assert sum(map(len, shown)) >= 10_000 - 4096
    assert len(stripper._held) <= 4096


def test_what_was_held_back_is_text_once_nothing_comes_after_it() -> None:
    stripper = Stripper()
    assert stripper.feed(b"done\x1b[3") == b"done"
    assert (stripper.finish(), stripper.finish()) == (b"\x1b[3", b"")


def test_much_that_looks_like_a_beginning_is_read_once() -> None:
    # A pattern that looked again at each place would take minutes.
    assert strip(b"\x1b[" * 200_000) == b"\x1b[" * 200_000
    assert strip(b"\x1b]" * 200_000)
    assert unfinished_sequence(b"\x1b[" * 200_000) == 2
