"""One channel: over the stream that its gateway has now, or over none for a while. What is at its end is a subclass."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.fields import flag, whole
from sandpod_runner.protocol.flow import FlowError, Receiving, Sending
from sandpod_runner.protocol.messages import CHANNEL_GRACE
from sandpod_runner.runs.delivery import Owner


class Channel(ABC):
    """A channel. `forget` is called at its end."""

    def __init__(self, name: str, forget: Callable[[str], object]) -> None:
        self.name = name
        self.sending, self.receiving = Sending(), Receiving()
        self._forget = forget
        self._owner: Owner | None = None
        self._mark = 0
        self._alone: asyncio.TimerHandle | None = None
        self._over = False

    @abstractmethod
    def fill(self) -> None:
        """Put into `sending` what there is and has room; more, when it comes, with a `pump` after it."""

    @abstractmethod
    def arrived(self, data: bytes) -> None:
        """Take what has come, and call `dealt_with` as that goes on."""

    @abstractmethod
    def end(self) -> None:
        """End what is at this end."""

    def open(self, header: dict[str, Any], owner: Owner) -> None:
        """Go on over this stream, in place of an earlier one. Raises Refusal: What has come is not kept."""
        try:
            self.sending.acknowledge(whole(header, "upto"))
            self.sending.resume(whole(header, "received", self.sending.acked))
        except FlowError as error:
            if self._owner is None and self._alone is None:
                self.close()  # nobody has ever had it
            raise Refusal("invalid_argument", f"The channel can't go on there: {error}.") from error
        if self._owner is not None and self._owner is not owner:
            self._owner.send(self._fields("close", code="session_busy", message="It was opened again elsewhere."))
        self._owner = owner
        self._wait_no_more()
        state = {"received": self.receiving.received, "upto": self.receiving.credited}
        owner.send(self._fields("open", **state, offset=self.sending.sent, mark=self._mark))
        self.pump()

    def take(self, kind: str, header: dict[str, Any], payload: bytes, owner: Owner) -> None:
        """Take a frame from a stream. Raises Refusal: It is malformed."""
        if owner is not self._owner:
            return  # it was sent before that stream knew
        try:
            if kind == "data":
                new = self.receiving.take(whole(header, "offset"), payload, last=flag(header, "last"))
                if new:
                    self.arrived(new)
            elif kind == "credit":
                self.sending.acknowledge(whole(header, "upto"))
                self._mark = whole(header, "mark")
                self.pump()
            elif kind == "close" and flag(header, "stay"):
                self.orphan(owner)
            elif kind == "close":
                self.close()
        except FlowError as error:
            owner.send(self._fields("close", code="invalid_argument", message=f"The channel has ended: {error}."))
            self.close()

    @property
    def spare(self) -> bool:
        """Whether it only waits to be asked for the rest of what it has sent."""
        return self._owner is None and self.sending.finished

    def flow(self, owner: Owner) -> None:
        """Send what the stream can take now."""
        if owner is self._owner:
            self.pump()

    def orphan(self, owner: Owner) -> None:
        """Wait for another stream, if this was the channel's."""
        if owner is self._owner and not self._over:
            self._owner = None
            self._alone = asyncio.get_running_loop().call_later(CHANNEL_GRACE, self.close)

    def pump(self) -> None:
        """Send what there is, as the stream takes it."""
        if self._over:
            return
        self.fill()
        owner = self._owner
        while owner is not None and owner.can_send and (piece := self.sending.next()) is not None:
            offset, data, last = piece
            owner.send(self._fields("data", offset=offset, last=last), data)

    def dealt_with(self, upto: int) -> None:
        """Note that what came before this offset takes no more room."""
        if self.receiving.credit(upto) and self._owner is not None:
            self._owner.send(self._fields("credit", upto=upto))

    def close(self) -> None:
        """End it; nobody can open it again."""
        if not self._over:
            self._over = True
            self._wait_no_more()
            self._owner = None
            self._forget(self.name)
            self.end()

    def _wait_no_more(self) -> None:
        if self._alone is not None:
            self._alone.cancel()
            self._alone = None

    def _fields(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"t": kind, "channel": self.name, **fields}
