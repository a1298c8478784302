"""The gateway's end of a channel to something in a sandbox: bytes in both directions, over one stream after another.

Where a stream breaks it is opened again on the next one, and goes on after what has come on either side.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.connection import REQUEST_TIMEOUT, RunnerConnection
from sandpod_gateway.runner.demux import MAX_OFFSET, BrokenProtocolError, ConnectionLostError, quiet_future
from sandpod_gateway.runner.messages import refusal, senseless
from sandpod_runner.protocol import messages as protocol
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.fields import flag, whole
from sandpod_runner.protocol.flow import FlowError, Receiving, Sending
from sandpod_runner.protocol.frames import Frame

logger = logging.getLogger(__name__)

Connect = Callable[[], AbstractAsyncContextManager[RunnerConnection]]

PAUSE: Final = 1.0  # seconds between two tries to find another stream
LAST_SECONDS: Final = 5.0  # in which a channel's end has to be sent


class Channel:
    """A channel. `opening` are the fields of its first `open`; without a kind it is one that is there.

    Attributes:
        offset: Where its bytes begin here.
        mark: What was noted with that.
        received: How many bytes the other side had when it was opened here.
    """

    offset = mark = received = 0

    def __init__(self, name: str, connect: Connect, opening: dict[str, Any], payload: bytes = b"") -> None:
        self.name = name
        self._connect, self._opening, self._payload = connect, opening, payload
        self._sending: Sending | None = None  # None until it was opened
        self._receiving = Receiving()
        self._unread = bytearray()
        self._size: dict[str, int] = {}  # as it was told last
        self._noted = 0  # the mark of what is acknowledged
        self._news: dict[str, dict[str, int]] = {}  # frames to send, by their kind
        self._error: Exception | None = None
        self._changed, self._work = asyncio.Event(), asyncio.Event()  # for who waits here; there may be work to send
        self._ready = quiet_future()  # it was opened once
        self._opened, self._over = quiet_future(), quiet_future()  # on this stream
        self._stay = False  # whether the other side waits for another stream
        self._keeper: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether all that the other side sends has been read."""
        return self._receiving.ended and not self._unread

    async def open(self) -> None:
        """Open it. Raises the runner's refusal, or sandbox_lost."""
        self._keeper = asyncio.create_task(self._keep())
        try:
            await asyncio.shield(self._ready)
        except BaseException:
            await self.close(stay=False)
            raise

    async def read(self, most: int = protocol.CHANNEL_PIECE) -> bytes:
        """Return what has come, when there is something; empty at the end. Raises SandpodError: It was cut off."""
        while not self._unread and not self._receiving.ended:
            await self._change()
        data = bytes(self._unread[:most])
        del self._unread[:most]
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes, as the other side takes them. Raises SandpodError: It was cut off."""
        while data:
            if self._sending is None or not self._sending.room:
                await self._change()
                continue
            piece, data = data[: self._sending.room], data[self._sending.room :]
            self._sending.put(piece)
            self._work.set()

    def resize(self, cols: int, rows: int) -> None:
        """Tell a terminal its size."""
        self._size = {"cols": cols, "rows": rows}
        self._tell("resize", **self._size)

    def acknowledge(self, upto: int, mark: int = 0) -> None:
        """Note that what came before this offset is not needed any more; who opens it later gets the mark back."""
        if self._receiving.credit(upto):
            self._noted = mark
            self._tell("credit", upto=upto, mark=mark)

    async def close(self, *, stay: bool) -> None:
        """Leave it, so that it ends or, for a while, may be opened again."""
        self._stay = stay
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    def take(self, frame: Frame) -> bool:
        """Take a frame about it; see `ChannelEnd`."""
        try:
            if frame.kind in {"close", "error"}:
                self.lose(refusal(frame, "channel"))
            elif frame.kind == "open" and not self._opened.done():
                self._begin(frame.header)
            elif self._sending is None or not self._opened.done():
                pass  # it was on its way to whoever had it before
            elif frame.kind == "credit":
                self._sending.acknowledge(whole(frame.header, "upto"))
            elif frame.kind == "data":
                offset, last = whole(frame.header, "offset"), flag(frame.header, "last")
                self._unread += self._receiving.take(offset, frame.payload, last=last)
            else:
                return False
        except (FlowError, Refusal):
            self.lose(senseless())
        self._changed.set()
        return True

    def lose(self, error: Exception) -> None:
        """Learn that no more comes over this stream."""
        for future in (self._opened, self._over):
            if not future.done():
                future.set_exception(error)

    def _begin(self, header: dict[str, Any]) -> None:
        received, upto, offset, mark = (
            whole(header, name, most=MAX_OFFSET) for name in ("received", "upto", "offset", "mark")
        )
        if self._sending is None:
            self._sending, self._receiving = Sending(upto, received), Receiving(offset)
            self.offset, self.mark, self.received, self._noted = offset, mark, received, mark
            self._opening, self._payload = {}, b""
            self._ready.set_result(None)
        else:
            self._sending.acknowledge(upto)
            self._sending.resume(received)
            if self._size:
                self._tell("resize", **self._size)  # which may not have come
        self._opened.set_result(None)

    def _tell(self, kind: str, **fields: int) -> None:
        self._news[kind] = fields
        self._work.set()

    async def _change(self) -> None:
        """Wait for something to change. Raises SandpodError: Nothing will."""
        if self._error is not None:
            raise self._error
        self._changed.clear()
        await self._changed.wait()

    async def _keep(self) -> None:
        """Have it open on one stream after another. A sandbox that can't be reached for long has lost it."""
        clock = asyncio.get_running_loop().time
        last, pause = clock(), 0.0
        try:
            while True:
                try:
                    async with self._connect() as connection:
                        await self._attend(connection)
                except BrokenProtocolError as error:
                    raise _lost(error) from error
                except (ConnectionLostError, SandpodError) as error:
                    if isinstance(error, SandpodError) and (
                        error.code != ErrorCode.BACKEND_UNAVAILABLE or not self._ready.done()
                    ):
                        raise
                    if self._opened.done() and self._opened.exception() is None:
                        # One that is lost as soon as it is opened is not opened again at once.
                        last, pause = clock(), (0.0 if clock() - last > 3 * PAUSE else pause)
                    if clock() - last > protocol.CHANNEL_GRACE:
                        raise _lost(error) from error
                await asyncio.sleep(pause)
                pause = PAUSE
        except SandpodError as error:
            self._fail(error)
        except Exception:
            logger.exception("a channel failed")
            self._fail(senseless())

    async def _attend(self, connection: RunnerConnection) -> None:
        """Have it open on a stream until that, or the channel, is over. Raises why it is."""
        self._opened, self._over = quiet_future(), quiet_future()
        if (earlier := connection.channels.get(self.name)) is not None:
            earlier.lose(_elsewhere())
        connection.channels[self.name] = self
        sender: asyncio.Task[None] | None = None
        try:
            state: dict[str, int] = {}
            if self._sending is not None:
                received, upto = self._receiving.received, self._receiving.credited
                state = {"received": received, "upto": upto, "mark": self._noted}
            await connection.send_of_channel("open", self.name, self._opening | state, self._payload)
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    await connection.wait_for(self._opened)
            except TimeoutError as error:
                raise _lost(error) from error
            sender = asyncio.create_task(self._send_on(connection))
            await connection.wait_for(self._over)
        finally:
            if sender is not None:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)
            if connection.channels.get(self.name) is self:
                del connection.channels[self.name]
                with contextlib.suppress(ConnectionLostError, TimeoutError):
                    async with asyncio.timeout(LAST_SECONDS):
                        await connection.send_of_channel("close", self.name, {"stay": self._stay})

    async def _send_on(self, connection: RunnerConnection) -> None:
        while True:
            self._work.clear()
            while self._news:
                kind, fields = self._news.popitem()
                await connection.send_of_channel(kind, self.name, fields)
            while self._sending is not None and (piece := self._sending.next()) is not None:
                offset, data, last = piece
                await connection.send_of_channel("data", self.name, {"offset": offset, "last": last}, data)
            await self._work.wait()

    def _fail(self, error: SandpodError) -> None:
        self._error = error
        self._changed.set()
        if not self._ready.done():
            self._ready.set_exception(error)


def _lost(error: Exception) -> SandpodError:
    step = "Call get_sandbox to see what became of it."
    return SandpodError(ErrorCode.SANDBOX_LOST, "The sandbox went away.", cause=str(error) or None, next_step=step)


def _elsewhere() -> SandpodError:
    return SandpodError(ErrorCode.SESSION_BUSY, "It was opened again elsewhere.", next_step="Go on there.")
