"""Sandboxes in memory, for tests of what is above the backends. Nothing is run, and nothing is isolated.

Its promises to callers are those of `base.py`; faults that can't be made with a
real backend can be made here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from fakes.runner import FakeRunner
from sandpod_api.conditions import SENTENCES, Reason
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import tenant_of
from sandpod_gateway.backends.base import ByteStream, PoolRecord, SandboxRecord
from sandpod_gateway.backends.local.in_process import Clock, InProcessBackend, utc_now
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.backends.refusals import no_such_pool
from sandpod_gateway.errors import SandpodError

Sleep = Callable[[float], Awaitable[None]]


class FakeCell:
    """A fake sandbox."""

    def __init__(self, sleep: Sleep) -> None:
        self.runner = FakeRunner(sleep)
        self._lost: asyncio.Future[tuple[Reason, str]] = asyncio.get_running_loop().create_future()

    async def connect(self) -> ByteStream:
        """Open a stream to its runner.

        Raises:
            OSError: It has ended.
        """
        if self._lost.done():
            raise ConnectionRefusedError("the sandbox has ended")
        return self.runner.connect()

    async def ending(self) -> tuple[Reason, str]:
        """Return why it ended, once it has."""
        return await asyncio.shield(self._lost)

    async def end(self) -> None:
        """End it."""
        self.lose(Reason.POD_FAILED)
        await self.runner.drop_streams()

    def lose(self, reason: Reason) -> None:
        """End it as if by itself."""
        if not self._lost.done():
            self._lost.set_result((reason, SENTENCES[reason]))


class FakeLauncher:
    """Makes fake sandboxes.

    Attributes:
        refusal: What claims fail with, if anything.
        gate: Claims wait until it is set; it is, unless a test clears it.
        cells: All that were made, oldest first.
    """

    def __init__(self, sleep: Sleep) -> None:
        self.refusal: SandpodError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.cells: list[FakeCell] = []
        self._sleep = sleep

    async def make(self) -> FakeCell:
        """Return a new sandbox.

        Raises:
            SandpodError: `refusal`.
        """
        await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        self.cells.append(FakeCell(self._sleep))
        return self.cells[-1]


class FakeBackend(InProcessBackend):
    """The fake backend; of the settings it has the limits, the times, the template's name and cold starts."""

    kind = "fake"

    def __init__(
        self, settings: LocalSettings | None = None, *, clock: Clock = utc_now, sleep: Sleep = asyncio.sleep
    ) -> None:
        super().__init__(settings or LocalSettings(), clock)
        self.launcher = FakeLauncher(sleep)
        self.wakes = 0
        self.scaled: dict[str, int] = {}

    def runner(self, name: str) -> FakeRunner:
        """Return the runner of a live sandbox, to look into it.

        Raises:
            SandpodError: session_not_found.
        """
        return self._cell(name).runner

    def warm(self) -> dict[tuple[str, str], int]:
        """Return that no sandbox waits for a claim."""
        return {("", self._settings.template): 0}

    async def pools(self, owner: str) -> tuple[PoolRecord, ...]:
        """Return one pool of the owner's tenant, with as many sandboxes as are wanted."""
        name, count = self._settings.template, self.scaled.get(tenant_of(owner), 1)
        return (PoolRecord(name=name, template=name, replicas=count, existing=count, ready=count),)

    async def scale_pool(self, owner: str, name: str, replicas: int) -> None:
        """Remember how many are wanted."""
        if name != self._settings.template:
            raise no_such_pool(name)
        self.scaled[tenant_of(owner)] = replicas

    def refuse_claims(self, code: ErrorCode | None) -> None:
        """Let claims fail with a code from now on, or work again."""
        step = "Try again later."
        self.launcher.refusal = None if code is None else SandpodError(code, f"Refused: {code}.", next_step=step)

    async def drop_streams(self, name: str) -> None:
        """Cut the streams to a live sandbox, which lives on."""
        await self._cell(name).runner.drop_streams()

    async def suspend(self, name: str) -> None:
        """Suspend a live sandbox: it has no runner any more, and its record says so."""
        ending = self._end(name, ("Suspended", Reason.SUSPENDED, SENTENCES[Reason.SUSPENDED]))
        if ending is not None:
            await ending

    async def wake(self, name: str) -> SandboxRecord | None:
        """Give a suspended sandbox a runner again, which knows nothing of what was before."""
        record = await self.get(name)
        if record is None or record.status != "Suspended":
            return record
        self.wakes += 1
        cell = await self.launcher.make()
        self._ended.pop(name, None)
        self._attach(replace(record, status="Ready", reason=None, message=None, resumed=self._clock()), cell)
        await self.touch(name)
        return await self.get(name)

    async def lose(self, name: str, reason: Reason = Reason.POD_FAILED) -> None:
        """Let a live sandbox end by itself, and return when its record says so."""
        watcher = self._watchers[name]
        self._cell(name).lose(reason)
        await asyncio.wait([watcher])

    async def _launch(self, *, may_make: bool) -> FakeCell | None:
        return await self.launcher.make() if may_make else None

    def _cell(self, name: str) -> FakeCell:
        cell = self._cells.get(name)
        if not isinstance(cell, FakeCell):
            raise SandpodError(ErrorCode.SESSION_NOT_FOUND, "There is no such sandbox.", next_step="Claim one.")
        return cell
