"""A backend whose sandboxes live and end with this process: claims, expiry and clean-up, whatever a sandbox is.

It keeps the promises of `base.py`; what a sandbox is made of, and how it is reached, is the subclass's business.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol
from weakref import WeakValueDictionary

from sandpod_api.conditions import Reason
from sandpod_api.fields import MAX_LIFETIME
from sandpod_api.names import NETWORK_NONE
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ByteStream, ClaimRequest, SandboxRecord, TemplateInfo, pool_exhausted
from sandpod_gateway.backends.local.ledger import Ledger
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.errors import SandpodError

logger = logging.getLogger(__name__)

Clock = Callable[[], datetime]
utc_now: Final[Clock] = partial(datetime.now, UTC)

_SWEEP_SECONDS: Final = 60.0  # longest pause: a laptop that slept must not wait for a time that has long passed


class Cell(Protocol):
    """One running sandbox."""

    async def connect(self) -> ByteStream:
        """Open a stream to its runner; OSError when it has ended."""

    async def ending(self) -> tuple[Reason, str]:
        """Return why it ended, once it has ended by itself."""

    async def end(self) -> None:
        """End all that runs in it and wait until it is gone. May be called more than once."""


class InProcessBackend:
    """A `Backend` over sandboxes that `_launch` starts."""

    kind: str
    image: str | None = None
    """What stands for an image, in words: what sandboxes run on."""

    def __init__(self, settings: LocalSettings, clock: Clock = utc_now) -> None:
        self._settings = settings
        self._clock = clock
        self._ledger = Ledger(settings)
        self._cells: dict[str, Cell] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._claims: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._changed = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    async def _launch(self, *, may_make: bool) -> Cell | None:
        """Return a sandbox whose runner answers, warm or, if it may be made, new. A failure leaves nothing behind."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start to end sandboxes whose time is over; see `base.Backend.start`."""
        self._sweeper = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """End all sandboxes. May be called more than once."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
            self._sweeper = None
        for name in list(self._cells):
            self._end(name)
        if self._endings:
            await asyncio.wait(self._endings)

    async def check(self) -> None:
        """Return when the backend is open; see `base.Backend.check`."""
        if self._sweeper is None:
            step = "Start it, or try again later."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, "The server is not running.", next_step=step)

    async def templates(self) -> tuple[TemplateInfo, ...]:
        """Return the one template."""
        languages = tuple(language.name for language in self._settings.languages)
        return (TemplateInfo(name=self._settings.template, languages=languages, image=self.image),)

    async def claim(self, request: ClaimRequest) -> SandboxRecord:
        """Give the caller a sandbox that is Ready; see `base.Backend.claim`."""
        await self.check()
        lifetime = self._lifetime(request)
        may_make = request.may_make(allowed=self._settings.cold_start)
        # One claim at a time for a session: the second one finds what the first one made.
        key = (request.owner, request.session)
        async with self._claims.setdefault(key, asyncio.Lock()) if request.session else contextlib.nullcontext():
            return self._ledger.of_session(*key) or await self._new(request, lifetime, may_make=may_make)

    async def get(self, name: str) -> SandboxRecord | None:
        """Return the sandbox of that name, or None."""
        return self._ledger.records.get(name)

    wake = get  # none is ever suspended

    async def list(self, owner: str) -> list[SandboxRecord]:
        """Return the owner's sandboxes, oldest first."""
        return self._ledger.of_owner(owner)

    def link_store(self) -> None:
        """Return None: no other gateway has these sandboxes."""

    def warm(self) -> dict[str, int]:
        """Return how many sandboxes wait for a claim, by template: none, unless a subclass says otherwise."""
        return {self._settings.template: 0}

    async def delete(self, name: str) -> None:
        """End the sandbox and wait until nothing of it is left, even if this call is cancelled."""
        self._ledger.remove(name)
        if (ending := self._end(name)) is not None:
            await asyncio.shield(ending)

    async def touch(self, name: str) -> None:
        """Note that the sandbox is in use now."""
        self._ledger.touch(name, self._clock())

    async def keep_busy(self, name: str, seconds: float) -> None:
        """Note that a background run may go on in the sandbox for so many seconds."""
        self._ledger.touch(name, self._clock(), self._clock() + timedelta(seconds=seconds))

    async def open_stream(self, name: str) -> ByteStream:
        """Open a stream to the sandbox's runner; see `base.Backend.open_stream`."""
        record = self._ledger.records.get(name)
        if record is None:
            step = "List your sandboxes, or create one."
            raise SandpodError(ErrorCode.SESSION_NOT_FOUND, "There is no such sandbox.", next_step=step)
        try:
            return await self._cells[name].connect()
        except (KeyError, OSError) as error:
            message, step = "The sandbox has ended, with the files in it.", "Create a new one."
            raise SandpodError(ErrorCode.SANDBOX_LOST, message, cause=record.message, next_step=step) from error

    def _lifetime(self, request: ClaimRequest) -> tuple[int, int]:
        settings = self._settings
        ttl = settings.ttl if request.ttl is None else request.ttl
        idle_timeout = settings.idle_timeout if request.idle_timeout is None else request.idle_timeout
        if request.template not in {None, settings.template}:
            raise _invalid(f"There is no template {request.template!r} here, only {settings.template!r}.")
        if request.network != NETWORK_NONE:
            raise _invalid("Sandboxes on this server have no network; the only network profile is 'none'.")
        if request.workspace is not None:
            raise _invalid("Workspaces here have a fixed size and end with their sandbox: none is persistent.")
        if not (1 <= ttl <= MAX_LIFETIME and 1 <= idle_timeout <= MAX_LIFETIME):
            raise _invalid(f"Lifetimes are from 1 to {MAX_LIFETIME} seconds.")
        return ttl, min(ttl, idle_timeout)

    async def _new(self, request: ClaimRequest, lifetime: tuple[int, int], *, may_make: bool) -> SandboxRecord:
        with self._ledger.starting(request.owner):
            cell = await self._launch(may_make=may_make)
            if cell is None:
                template, chosen = self._settings.template, self._settings.cold_start
                raise pool_exhausted(template, request.network, chosen=chosen)
            record = self._ledger.add(request, self.image, lifetime, self._clock())
        self._attach(record.name, cell)
        if self._sweeper is None:
            await self.delete(record.name)
            await self.check()
        return record

    def _attach(self, name: str, cell: Cell) -> None:
        self._cells[name] = cell
        self._watchers[name] = asyncio.create_task(self._watch(name, cell))
        self._changed.set()

    async def _watch(self, name: str, cell: Cell) -> None:
        """Record the end of a sandbox that ended by itself."""
        why = await cell.ending()
        logger.warning("sandbox %s ended by itself: %s", name, why[1])
        self._ledger.end(name, "Failed", why, self._clock())
        self._end(name)

    def _end(self, name: str) -> asyncio.Task[None] | None:
        """Start to end a sandbox, if that is not going on already."""
        cell = self._cells.pop(name, None)
        if cell is None:
            return None
        self._changed.set()
        task = asyncio.ensure_future(self._finish(cell, self._watchers.pop(name)))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    @staticmethod
    async def _finish(cell: Cell, watcher: asyncio.Task[None]) -> None:
        watcher.cancel()
        await cell.end()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher

    async def _sweep(self) -> None:
        while True:
            self._changed.clear()
            now = self._clock()
            for name in self._ledger.expire(now):
                self._end(name)
            event = self._ledger.next_event()
            pause = _SWEEP_SECONDS if event is None else min(_SWEEP_SECONDS, (event - now).total_seconds())
            # Not `wait_for`: Python 3.11's forgets a cancel that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.001, pause)):
                    await self._changed.wait()


def _invalid(message: str) -> SandpodError:
    step = "Correct the argument and call again, or leave it out."
    return SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
