"""The wire format: golden vectors that never change within a version, and what hostile bytes do to the decoder."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpod_runner.protocol.frames import MAX_HEADER, MAX_PAYLOAD, Decoder, Frame, FrameError, encode

GOLDEN: list[tuple[dict[str, Any], bytes, str]] = [
    ({}, b"", "00000002000000007b7d"),
    ({"t": "ping", "id": 7}, b"", "00000013000000007b2274223a2270696e67222c226964223a377d"),
    (
        {"t": "out", "run": "r", "stream": "stdout", "offset": 0},
        b"\x00\xff\n",
        (
            "00000032000000037b2274223a226f7574222c2272756e223a2272222c2273747265616d223a227374646f7574222c226f666673657422"
            "3a307d00ff0a"
        ),
    ),
    ({"t": "é\udcff"}, b"", "00000014000000007b2274223a225c75303065395c7564636666227d"),
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
frames = st.tuples(st.dictionaries(st.text(max_size=10), json_values, max_size=4), st.binary(max_size=200))


def decode(data: bytes) -> list[Frame]:
    return list(Decoder().feed(data))


@pytest.mark.parametrize(("header", "payload", "wire"), GOLDEN)
def test_frame_has_the_bytes_of_the_golden_vector_in_both_directions(
    header: dict[str, Any], payload: bytes, wire: str
) -> None:
    assert encode(header, payload).hex() == wire
    assert decode(bytes.fromhex(wire)) == [Frame(header, payload)]


@given(st.lists(frames, max_size=5), st.data())
def test_frames_come_out_whole_however_the_bytes_are_cut(
    sent: list[tuple[dict[str, Any], bytes]], data: st.DataObject
) -> None:
    wire = b"".join(encode(header, payload) for header, payload in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    decoder = Decoder()
    seen: list[Frame] = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        seen += decoder.feed(wire[start:end])
    assert [(frame.header, frame.payload) for frame in seen] == sent
    assert len(decoder._buffer) == 0


@given(st.binary(max_size=300))
def test_decoder_answers_any_bytes_with_frames_or_a_frame_error(data: bytes) -> None:
    decoder = Decoder()
    try:
        for frame in decoder.feed(data):
            assert isinstance(frame.header, dict)
    except FrameError:
        return
    assert len(decoder._buffer) <= len(data)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_lengths_over_the_limits_are_refused_before_anything_is_kept(head: int, payload: int) -> None:
    decoder = Decoder()
    prefix = head.to_bytes(4, "big") + payload.to_bytes(4, "big")
    if head > MAX_HEADER or payload > MAX_PAYLOAD:
        with pytest.raises(FrameError):
            list(decoder.feed(prefix))
    elif head > 0:
        assert list(decoder.feed(prefix)) == []
        assert len(decoder._buffer) == len(prefix)


@pytest.mark.parametrize("text", [b"[]", b'"t"', b"1", b"null", b"{", b"", b"\xff", b"[" * 10_000])
def test_header_that_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(FrameError):
        decode(len(text).to_bytes(4, "big") + bytes(4) + text)


def test_frames_before_a_bad_one_are_still_given() -> None:
    good = encode({"t": "ping", "id": 1})
    feed = Decoder().feed(good + b"\xff" * 8)
    assert next(feed).header == {"t": "ping", "id": 1}
    with pytest.raises(FrameError):
        next(feed)


def test_header_and_payload_at_their_limits_pass_and_one_byte_more_does_not() -> None:
    empty = len(json.dumps({"a": ""}, separators=(",", ":")))
    assert len(decode(encode({"a": "x" * (MAX_HEADER - empty)}, bytes(MAX_PAYLOAD)))) == 1
    with pytest.raises(FrameError):
        encode({"a": "x" * (MAX_HEADER - empty + 1)})
    with pytest.raises(FrameError):
        encode({}, bytes(MAX_PAYLOAD + 1))


@pytest.mark.parametrize(("header", "kind"), [({"t": "run"}, "run"), ({}, ""), ({"t": 1}, ""), ({"t": None}, "")])
def test_kind_is_a_text_whatever_the_header_says(header: dict[str, Any], kind: str) -> None:
    assert Frame(header).kind == kind
