"""What a terminal shows: masked like other output, and the same for a client that another gateway goes on with."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpod_gateway.masking.masker import Masker
from sandpod_gateway.terminals.output import ACK_EVERY, Output, Place
from sandpod_runner.protocol.flow import Receiving, Sending

VALUE = b"s3cr3t-value"
MASK = b"[secret TOKEN]"
MASKER = Masker([("TOKEN", VALUE.decode())])
START = Place(0, 0)


@pytest.mark.promise("secret-split")
@given(
    st.lists(st.sampled_from([b"s3cr", b"3t-value", VALUE, b"plain ", b"s", b"x" * 5000]), max_size=30),
    st.lists(st.integers(0, 200_000), max_size=8),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_a_client_that_comes_back_gets_the_rest_and_no_value(
    parts: list[bytes], cuts: list[int], left: float, acked: float
) -> None:
    written = b"".join((*parts, b"."))
    places = sorted({0, len(written), *(cut % (len(written) + 1) for cut in cuts)})
    pieces = [written[start:end] for start, end in pairwise(places)]
    first = Output(START, MASKER)
    came = first.feed(written[: int(len(written) * left)])
    place = first.got(int(len(came) * acked))
    assert place.shown <= len(came) * acked

    again = Output(place, MASKER, received=len(came))
    rest, at = b"", 0
    for piece in pieces:
        start = max(0, place.written - at)
        rest += again.feed(piece[start:])
        at += len(piece)
    assert came + rest + again.finish() == written.replace(VALUE, MASK)


def test_what_says_nothing_by_itself_is_shown_after_a_pause_and_the_value_is_hidden_all_the_same() -> None:
    output = Output(START, MASKER)
    assert (output.feed(b"$ s3"), output.waits) == (b"$ ", True)
    assert (output.pause(), output.waits) == (b"s3", False)
    assert (output.feed(b"cr"), output.waits, output.pause()) == (b"", False, b"")
    assert output.got(4) == Place(2, 2)  # where the value begins: the rest is to be seen with it
    assert output.feed(VALUE[4:] + b" ls\n") == MASK + b" ls\n"
    assert output.got(output.sent) == Place(2 + 2 + len(MASK) + 4, 2 + len(VALUE) + 4)
    assert (output.feed(b"s"), output.pause(), output.feed(b"ls\n")) == (b"", b"s", b"ls\n")


def test_places_are_few_and_without_secrets_both_counts_are_the_same() -> None:
    output = Output(Place(100, 100), None)
    for _ in range(1000):
        output.feed(b"x" * 100)
    assert len(output._places) < 30
    place = output.got(60_000)
    assert place.shown == place.written
    assert 55_000 < place.shown <= 60_000


@pytest.mark.promise("terminal-lossless")
@pytest.mark.parametrize("every", [1, 64 * 1024, ACK_EVERY])
@pytest.mark.parametrize(("piece", "shown"), [(b"v" * 3200, MASK), (b"plain " * 500, b"plain " * 500)])
def test_no_program_waits_for_a_client_that_sees_too_little_to_acknowledge(
    piece: bytes, shown: bytes, every: int
) -> None:
    sending, receiving = Sending(), Receiving()
    output, acked, left = Output(START, Masker([("TOKEN", "v" * 3200)])), 0, piece * 1000
    while left:
        size = sending.room
        assert size, "the program waits"
        sending.put(left[:size])
        left = left[size:]
        while (sent := sending.next()) is not None:
            output.feed(receiving.take(*sent[:2]))
            if output.shown - acked >= every:
                acked = output.shown
                output.got(acked)
            place = output.got()
            assert place.shown <= acked or piece != shown, "what is shown is kept until it is acknowledged"
            if receiving.credit(place.written):
                sending.acknowledge(place.written)
    output.finish()
    assert output.shown == 1000 * len(shown)
