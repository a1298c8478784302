"""The state of a channel's direction: what is kept, what may come, and what a broken stream changes: nothing."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpod_runner.protocol.flow import CREDIT_EVERY, FlowError, Receiving, Sending
from sandpod_runner.protocol.messages import CHANNEL_PIECE, CHANNEL_WINDOW


class Link:
    """Both ends of a direction, and what is on its way between them."""

    def __init__(self) -> None:
        self.sending, self.receiving = Sending(), Receiving()
        self.given, self.came, self.dealt = bytearray(), bytearray(), 0
        self._pieces: list[tuple[int, bytes, bool]] = []
        self._acks: list[int] = []

    def put(self, count: int) -> None:
        data = bytes((len(self.given) + each) % 251 for each in range(min(count, self.sending.room)))
        self.sending.put(data)
        self.given += data

    def send(self, count: int) -> None:
        pieces = [self.sending.next() for _ in range(count % 5)]
        self._pieces += [piece for piece in pieces if piece is not None]
        assert self.sending.sent - self.sending.acked <= CHANNEL_WINDOW

    def arrive(self, count: int) -> None:
        for offset, data, last in self._pieces[: count % 5]:
            self.came += self.receiving.take(offset, data, last=last)
        del self._pieces[: count % 5]

    def deal(self, count: int) -> None:
        self.dealt = min(self.dealt + count, len(self.came))
        if self.receiving.credit(self.dealt):
            self._acks.append(self.dealt)

    def credit(self, _: int) -> None:
        while self._acks:
            self.sending.acknowledge(self._acks.pop(0))

    def cut(self, _: int) -> None:
        """What is on its way is lost, and another stream opened."""
        self._pieces.clear()
        self._acks.clear()
        self.sending.acknowledge(self.receiving.credited)
        self.sending.resume(self.receiving.received)


_STEP = st.sampled_from([Link.put, Link.send, Link.arrive, Link.deal, Link.credit, Link.cut])


@given(st.lists(st.tuples(_STEP, st.integers(1, CHANNEL_WINDOW)), max_size=60))
@settings(deadline=None, max_examples=60)
def test_nothing_is_lost_or_comes_twice_wherever_the_stream_breaks(
    steps: list[tuple[Callable[[Link, int], None], int]],
) -> None:
    link = Link()
    for step, count in steps:
        step(link, count)
    link.sending.finish()
    link.cut(0)
    for _ in range(9):
        for step in (Link.send, Link.arrive, Link.deal, Link.credit):
            step(link, CHANNEL_WINDOW - 1)
    assert link.came == link.given
    assert link.receiving.ended


def test_a_piece_is_bounded_and_the_end_is_told_once() -> None:
    sending = Sending()
    assert sending.next() is None
    sending.put(bytes(CHANNEL_WINDOW))
    with pytest.raises(ValueError, match="no room"):
        sending.put(b"x")
    sending.finish()
    pieces = list(iter(sending.next, None))
    assert [(offset, len(data), last) for offset, data, last in pieces] == [
        (start, CHANNEL_PIECE, start + CHANNEL_PIECE == CHANNEL_WINDOW)
        for start in range(0, CHANNEL_WINDOW, CHANNEL_PIECE)
    ]
    sending.resume(CHANNEL_WINDOW)
    assert [sending.next(), sending.next()] == [(CHANNEL_WINDOW, b"", True), None]


def test_what_the_other_side_may_not_do_is_refused() -> None:
    sending, receiving = Sending(), Receiving()
    sending.put(b"abc")
    sending.next()
    for upto in (4, 2**60):
        with pytest.raises(FlowError, match="more was acknowledged"):
            sending.acknowledge(upto)
    sending.acknowledge(2)
    sending.acknowledge(1)  # which was on its way
    for received in (1, 4):
        with pytest.raises(FlowError, match="not kept"):
            sending.resume(received)

    assert receiving.take(0, b"abc") == b"abc"
    assert receiving.take(1, b"bcd") == b"d"
    with pytest.raises(FlowError, match="missing"):
        receiving.take(5, b"")
    with pytest.raises(FlowError, match="more came"):
        receiving.take(4, bytes(CHANNEL_WINDOW))
    with pytest.raises(FlowError, match="not come"):
        receiving.credit(5)
    assert receiving.take(4, bytes(CHANNEL_WINDOW - 4), last=True)
    assert [receiving.credit(CREDIT_EVERY - 1), receiving.credit(CREDIT_EVERY)] == [False, True]
    with pytest.raises(FlowError, match="more came"):
        receiving.take(CHANNEL_WINDOW, b"after the end")
