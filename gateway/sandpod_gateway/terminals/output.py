"""What a terminal shows: masked, and counted as its client counts it. No I/O."""

from collections import deque
from typing import Final, NamedTuple

from sandpod_gateway.masking.masker import SHOWN, Masker, StreamMasker
from sandpod_runner.protocol.messages import CHANNEL_WINDOW

ACK_EVERY: Final = CHANNEL_WINDOW // 2  # bytes that a client may get before it acknowledges them
_KEPT: Final = CHANNEL_WINDOW * 5 // 8
"""Bytes that programs wrote which wait for a client that may be waiting for more. Room for more is left then, whenever
it is that the sandbox hears of it."""
_STEP, _PIECE = 4096, 16384  # least and most bytes between two places that can be gone on from


class Place(NamedTuple):
    """A place in the output: how much is shown by then, and how much of what programs wrote that was."""

    shown: int
    written: int


class Output:
    """Masks output piece by piece, and knows what of it need not be kept when a client has got so much.

    Only where no value may have begun can another gateway go on: what it makes of the rest is the same then, but for
    the beginning of a value that was shown because nothing came after it for a while.
    """

    def __init__(self, begin: Place, masker: Masker | None, received: int | None = None) -> None:
        """Begin at a place; a client that has `received` more than what is shown by then does not get that again."""
        self._written, self.shown = begin.written, begin.shown
        self._has = self._got = begin.shown if received is None else received
        self._masker = StreamMasker(masker) if masker is not None else None
        self._places: deque[Place] = deque([begin])

    @property
    def sent(self) -> int:
        """How much its client has by now."""
        return max(self._has, self.shown)

    @property
    def waits(self) -> bool:
        """Whether something is held back that may be shown when nothing follows it soon."""
        held, known = self._masker.held if self._masker is not None else (0, 0)
        return known < held <= SHOWN

    def feed(self, data: bytes) -> bytes:
        """Take what programs wrote; return what can be shown by now."""
        return b"".join(self._feed(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE))

    def _feed(self, data: bytes) -> bytes:
        self._written += len(data)
        shown = self._new(self._masker.feed(data) if self._masker is not None else data)
        held, known = self._masker.held if self._masker is not None else (0, 0)
        place = Place(self.shown - known, self._written - held)
        if len(self._places) > 1 and place.written - self._places[-2].written < _STEP:
            self._places.pop()
        self._places.append(place)
        return shown

    def pause(self) -> bytes:
        """Return what is held back and says nothing by itself: nothing follows it now."""
        return self._new(self._masker.pause() if self._masker is not None else b"")

    def finish(self) -> bytes:
        """Return the rest."""
        return self._new(self._masker.finish() if self._masker is not None else b"")

    def got(self, shown: int = 0) -> Place:
        """Return the last place before which a client that has got so much needs nothing any more.

        What masks have swallowed may be much, and its client sees nothing of it that it could acknowledge: the program
        would wait for ever. So it is not kept for one that comes back.
        """
        self._got = max(self._got, shown)
        waits = self.shown - self._got < ACK_EVERY
        while len(self._places) > 1 and (
            self._places[1].shown <= self._got or (waits and self._written - self._places[1].written >= _KEPT)
        ):
            self._places.popleft()
        return self._places[0]

    def _new(self, data: bytes) -> bytes:
        known = max(0, self._has - self.shown)
        self.shown += len(data)
        return data[known:]
