import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpod_gateway.runs.recorder import Stream


def captured(cap: int, *pieces: bytes) -> Stream:
    stream = Stream(cap)
    for piece in pieces:
        stream.take(stream.received, piece)
    return stream


@given(st.text(max_size=300), st.integers(1, 40))
def test_text_that_fits_comes_back_whole_whatever_the_pieces(text: str, piece: int) -> None:
    data = text.encode()
    result = captured(2000, *(data[i : i + piece] for i in range(0, len(data), piece))).read()
    assert (result.text, result.total, result.truncated) == (text, len(data), False)


@given(st.binary(min_size=0, max_size=5000), st.integers(2, 200), st.integers(1, 700))
def test_kept_bytes_are_bounded_and_all_are_counted(data: bytes, cap: int, piece: int) -> None:
    capture = captured(cap, *(data[i : i + piece] for i in range(0, len(data), piece)))
    result = capture.read()
    assert result.total == len(data)
    assert result.truncated == (len(data) > cap)
    assert len(capture._head) + len(capture._tail) <= cap // 2 + 2 * (cap - cap // 2) + piece


@pytest.mark.promise("head-and-tail")
def test_cut_text_keeps_head_and_tail_and_says_how_much_is_left_out() -> None:
    result = captured(10, b"0123456789" * 10).read()
    assert result.text == "01234\n[... 90 bytes left out ...]\n56789"
    assert result.truncated


def test_no_character_is_split_where_the_text_is_cut() -> None:
    result = captured(11, "é漢🙂".encode() * 100).read()
    assert "\ufffd" not in result.text


def test_a_smaller_cap_cuts_what_was_kept_whole() -> None:
    capture = captured(100, b"a" * 40 + b"b" * 40)
    assert capture.read(20).text == "a" * 10 + "\n[... 60 bytes left out ...]\n" + "b" * 10
    assert capture.read().text == "a" * 40 + "b" * 40


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert captured(100, b"ok \xd4\xff end\n").read().text == "ok \ufffd\ufffd end\n"
