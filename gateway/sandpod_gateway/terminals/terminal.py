"""One terminal, as one client has it."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import Final

import anyio

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Outcome
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.channel import Channel
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.messages import Ended, Tail, checked
from sandpod_gateway.runner.run_ids import run_id
from sandpod_gateway.sandboxes.requests import ask_runner
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_gateway.terminals.output import Output, Place
from sandpod_gateway.usage.amounts import Account, Amounts

logger = logging.getLogger(__name__)

PAUSE: Final = 0.05  # seconds without output after which what may be the beginning of a secret is shown
CHARGE_EVERY: Final = 64 * 1024  # bytes
END_WAIT: Final = 10.0  # seconds that the end of a terminal's run may take after its output


@dataclass(eq=False, kw_only=True)
class Terminal:
    """A terminal. Its methods raise SandpodError where it is cut off, or its caller's quota is used up."""

    sandboxes: Sandboxes
    record: SandboxRecord
    account: Account
    channel: Channel
    output: Output
    _moved: dict[str, int] = field(default_factory=lambda: {"out": 0, "into": 0}, init=False)  # bytes not charged yet

    @property
    def name(self) -> str:
        """How its caller knows it, and its run."""
        return run_id(self.record.name, self.channel.name)

    def __post_init__(self) -> None:
        """Count with it."""
        self.sandboxes.meter.ongoing.movers.add(self)

    def settle(self) -> None:
        """Charge what it has moved, whatever is left of its caller's quota: the next piece is refused where it is."""
        if any(self._moved.values()):
            moved = self._take()
            amounts = Amounts(bytes_in=moved["into"], bytes_out=moved["out"])
            self.sandboxes.meter.charge(self.account, amounts, self.record.name)

    async def read(self) -> bytes:
        """Return what it shows next; empty at its end."""
        while True:
            try:
                async with asyncio.timeout(PAUSE if self.output.waits else None):
                    data = await self.channel.read()
            except TimeoutError:
                shown = self.output.pause()
            else:
                self._move("out", len(data))
                shown = self.output.feed(data) if data else self.output.finish()
                self._acknowledge(self.output.got())
                if not data:
                    return shown
            if shown:
                return shown

    def got(self, shown: int) -> None:
        """Note that its client has so many bytes of what it shows. Raises invalid_argument: so much was not sent."""
        if shown > self.output.sent:
            step = "Count the bytes of all binary messages of this terminal."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, "So much was not sent.", next_step=step)
        self._acknowledge(self.output.got(shown))

    async def write(self, data: bytes) -> None:
        """Type something in. That alone is use of its sandbox: output goes on when its user has long gone."""
        self._move("into", len(data))
        await self.channel.write(data)
        with contextlib.suppress(SandpodError):  # it is noted with what is typed next
            await self.sandboxes.touch(self.record)

    def resize(self, cols: int, rows: int) -> None:
        """Change its size."""
        self.channel.resize(cols, rows)

    async def end(self) -> Ended:
        """Return how its program ended, once it shows nothing more."""

        async def look(connection: RunnerConnection) -> Tail:
            fields = {"run": self.channel.name, "cursor": 0, "wait": END_WAIT, "limit": 1}
            return checked(Tail, await connection.ask("tail", fields))

        ended = (await ask_runner(self.sandboxes, self.record, look, again=True)).end
        if ended is None:
            message, step = "The terminal's program has not ended in time.", "Call list_runs to see what became of it."
            raise SandpodError(ErrorCode.TIMEOUT, message, next_step=step)
        self.sandboxes.meter.ongoing.background_ended(self.name, ended.cpu_ms / 1e3, 0)
        if ended.outcome == Outcome.SANDBOX_LOST and self.sandboxes.is_closing(self.record.name):
            detail = "The sandbox was closed while the program ran."
            ended = ended.model_copy(update={"outcome": Outcome.CANCELLED, "detail": detail})
        seconds = ended.duration_ms / 1e3
        logger.info("terminal %s ended: owner %s, %s, %.3f s", self.name, self.record.owner, ended.outcome, seconds)
        return ended

    async def close(self, *, stay: bool) -> None:
        """Leave it: it is hung up, or waits for a while for its client to come back."""
        with anyio.CancelScope(shield=True):
            await self.channel.close(stay=stay)
            with contextlib.suppress(SandpodError):  # that is for whoever uses it next
                self._charge()

    def _acknowledge(self, place: Place) -> None:
        self.channel.acknowledge(place.written, place.shown)

    def _move(self, way: str, size: int) -> None:
        self._moved[way] += size
        if self._moved[way] >= CHARGE_EVERY:
            self._charge()

    def _charge(self) -> None:
        moved = self._take()
        meter, name = self.sandboxes.meter, self.record.name
        meter.move(self.account, name, out=moved["out"])
        with meter.moving(self.account, name, packages=moved["into"]):
            pass

    def _take(self) -> dict[str, int]:
        moved, self._moved = self._moved, {"out": 0, "into": 0}
        return moved
