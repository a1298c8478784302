"""One direction of a channel, seen from either end: what may be sent, what has come, what need not be kept. Pure.

All numbers are offsets from the direction's beginning, so that it goes on over another stream where it was.
"""

from __future__ import annotations

from typing import Final

from sandpod_runner.protocol.messages import CHANNEL_PIECE, CHANNEL_WINDOW

CREDIT_EVERY: Final = CHANNEL_WINDOW // 4  # bytes for one `credit`


class FlowError(ValueError):
    """The other side does not keep to what is agreed: the channel can't go on."""


class Sending:
    """What is sent, and kept until it is acknowledged.

    One can go on where another has left off: what has come by then and is not acknowledged only takes room.
    Raises FlowError: That is more than the window.
    """

    def __init__(self, acked: int = 0, received: int = 0) -> None:
        if not acked <= received <= acked + CHANNEL_WINDOW:
            raise FlowError("more is on its way than may")
        self.acked, self.sent = acked, received
        self.finished = False  # whether nothing more is put in
        self._kept = bytearray(received - acked)  # all after `acked`
        self._end_sent = False

    @property
    def room(self) -> int:
        """Bytes that can be put in."""
        return CHANNEL_WINDOW - len(self._kept)

    def put(self, data: bytes) -> None:
        """Take bytes to send. Raises ValueError: There is no room for them."""
        if len(data) > self.room:
            raise ValueError("there is no room")
        self._kept += data

    def finish(self) -> None:
        """Take the end."""
        self.finished = True

    def next(self) -> tuple[int, bytes, bool] | None:
        """Return the next piece to send now: its offset, its bytes, and whether it is the last one."""
        start = self.sent - self.acked
        piece = bytes(self._kept[start : start + CHANNEL_PIECE])
        last = self.finished and start + len(piece) == len(self._kept)
        if not piece and (not last or self._end_sent):
            return None
        offset, self.sent, self._end_sent = self.sent, self.sent + len(piece), last
        return offset, piece, last

    def acknowledge(self, upto: int) -> None:
        """Keep only what comes after this offset. Raises FlowError: So much was not sent."""
        if upto > self.sent:
            raise FlowError("more was acknowledged than was sent")
        if upto > self.acked:
            del self._kept[: upto - self.acked]
            self.acked = upto

    def resume(self, received: int) -> None:
        """Go on, over another stream, after what has come. Raises FlowError: It is not what was sent and is kept."""
        if not self.acked <= received <= self.sent:
            raise FlowError("what has come is not kept, or was never sent")
        self.sent, self._end_sent = received, False


class Receiving:
    """What has come, and how much of that is dealt with."""

    def __init__(self, start: int = 0) -> None:
        self.received = self.credited = start
        self.ended = False  # whether the last byte has come

    def take(self, offset: int, data: bytes, *, last: bool = False) -> bytes:
        """Return what is new of a piece. Raises FlowError: There is a gap, or more than the window."""
        new = data[max(0, self.received - offset) :]
        if offset > self.received:
            raise FlowError("bytes are missing")
        if new and (self.ended or self.received + len(new) > self.credited + CHANNEL_WINDOW):
            raise FlowError("more came than may")
        self.received += len(new)
        self.ended = self.ended or last
        return new

    def credit(self, upto: int) -> bool:
        """Note that all before this offset is dealt with; return whether the other side should learn of it now.

        Raises FlowError: So much has not come.
        """
        if upto > self.received:
            raise FlowError("so much has not come")
        due = upto - self.credited >= CREDIT_EVERY
        if due:
            self.credited = upto
        return due
