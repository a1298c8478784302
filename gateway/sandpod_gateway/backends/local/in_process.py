"""A backend whose sandboxes live and end with this process: claims, records, expiry, whatever a sandbox is made of.

It keeps the promises of `base.py`; what a sandbox is, and how it is reached, is the subclass's business.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol
from weakref import WeakValueDictionary

from cachetools import TTLCache

from sandpod_api.conditions import SENTENCES, Reason
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ByteStream, ClaimRequest, SandboxRecord, Status, TemplateInfo
from sandpod_gateway.backends.local.conditions import conditions_of, ready
from sandpod_gateway.backends.local.lifetimes import lifetime_of
from sandpod_gateway.backends.local.secrets import LocalSecrets
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.backends.refusals import no_such_sandbox, pool_exhausted
from sandpod_gateway.errors import SandpodError

logger = logging.getLogger(__name__)

Clock = Callable[[], datetime]
utc_now: Final[Clock] = partial(datetime.now, UTC)

KEEP_ENDED: Final = 600.0
"""Seconds for which a sandbox that has ended can still be asked about."""
MAX_ENDED: Final = 1000
"""Records of ended sandboxes at most; those that nobody asked about for longest go first."""
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
    warm: Callable[[], dict[tuple[str, str], int]]
    image: str | None = None  # what sandboxes run on, in words, in place of an image's name

    def __init__(self, settings: LocalSettings, clock: Clock = utc_now) -> None:
        self._settings = settings
        self._clock = clock
        self._secrets = LocalSecrets(tuple(settings.secrets))
        self._live: dict[str, SandboxRecord] = {}
        self._ended = TTLCache[str, SandboxRecord](MAX_ENDED, KEEP_ENDED, lambda: clock().timestamp())
        self._busy: dict[str, datetime] = {}
        self._starting: Counter[str] = Counter()  # by owner
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
        for name in list(self._live):
            self._end(name)
        if self._endings:
            await asyncio.wait(self._endings)

    async def check(self) -> None:
        """Return when the backend is open; see `base.Backend.check`."""
        if self._sweeper is None:
            step = "Start it, or try again later."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, "The server is not running.", next_step=step)

    async def templates(self, owner: str) -> tuple[TemplateInfo, ...]:  # noqa: ARG002 - the same for all
        """Return the one template."""
        languages = tuple(language.name for language in self._settings.languages)
        settings = self._settings
        memory = settings.memory_bytes
        return (TemplateInfo(name=settings.template, languages=languages, image=self.image, memory=memory),)

    async def claim(self, request: ClaimRequest) -> SandboxRecord:
        """Give the caller a sandbox that is Ready; see `base.Backend.claim`."""
        await self.check()
        lifetime = lifetime_of(request, self._settings)
        may_make = request.may_make(allowed=self._settings.cold_start)
        # One claim at a time for a session: the second one finds what the first one made.
        key = (request.owner, request.session)
        async with self._claims.setdefault(key, asyncio.Lock()) if request.session else contextlib.nullcontext():
            held = (r for r in self._live.values() if request.session and (r.owner, r.session) == key)
            return next(held, None) or await self._new(request, lifetime, may_make=may_make)

    async def get(self, name: str) -> SandboxRecord | None:
        """Return the sandbox of that name, or None."""
        return self._live.get(name) or self._ended.get(name)

    wake = get  # none is ever suspended

    async def suspend(self, name: str) -> None:
        """Do nothing: no workspace is persistent."""

    async def set_lifetime(self, name: str, *, ttl: int, idle_timeout: int) -> SandboxRecord:
        """Change how long the sandbox lives; see `base.Backend.set_lifetime`."""
        if (record := self._live.get(name)) is None:
            raise no_such_sandbox()
        self._live[name] = replace(record, ttl=ttl, idle_timeout=idle_timeout)
        await self.touch(name)
        self._changed.set()
        return self._live[name]

    async def list(self, owner: str) -> list[SandboxRecord]:
        """Return the owner's sandboxes, oldest first."""
        known = [*self._ended.values(), *self._live.values()]
        return sorted((r for r in known if r.owner == owner), key=lambda r: r.created)

    async def every(self) -> tuple[SandboxRecord, ...]:
        """Return the sandboxes of all owners, oldest first."""
        return tuple(sorted([*self._ended.values(), *self._live.values()], key=lambda record: record.created))

    async def events(self, name: str) -> tuple[()]:  # noqa: ARG002 - nobody keeps them
        """Return nothing: conditions say how a sandbox is, and nobody keeps how it was."""
        return ()

    def key_source(self) -> None:
        """Return None: keys are in a file."""

    def sign_in_places(self) -> None:
        """Return None, as `link_store`."""

    def sign_in_key_store(self) -> None:
        """Return None, as `link_store`."""

    def link_store(self) -> None:
        """Return None: no other gateway has these sandboxes."""

    usage_store = link_store

    def secret_source(self) -> LocalSecrets:
        """Return what the settings name and sessions were given."""
        return self._secrets

    async def delete(self, name: str) -> None:
        """End the sandbox and wait until nothing of it is left, even if this call is cancelled."""
        self._ended.pop(name, None)
        if (ending := self._end(name)) is not None:
            await asyncio.shield(ending)

    async def touch(self, name: str) -> None:
        """Note that the sandbox is in use now."""
        await self.keep_busy(name, 0)

    async def keep_busy(self, name: str, seconds: float) -> None:
        """Note that a background run may go on in the sandbox for so many seconds."""
        if (record := self._live.get(name)) is None:
            return
        now = self._clock()
        used = self._busy[name] = max(now + timedelta(seconds=seconds), self._busy.get(name, now))
        expires = min(_later(record.created, record.ttl), _later(used, record.idle_timeout))
        self._live[name] = replace(record, last_activity=now, expires=expires)

    async def open_stream(self, name: str) -> ByteStream:
        """Open a stream to the sandbox's runner; see `base.Backend.open_stream`."""
        record = await self.get(name)
        if record is None:
            raise no_such_sandbox()
        try:
            return await self._cells[name].connect()
        except (KeyError, OSError) as error:
            message, step = "The sandbox has ended, with the files in it.", "Create a new one."
            raise SandpodError(ErrorCode.SANDBOX_LOST, message, cause=record.message, next_step=step) from error

    async def _new(self, request: ClaimRequest, lifetime: tuple[int, int], *, may_make: bool) -> SandboxRecord:
        template, (ttl, idle_timeout) = self._settings.template, lifetime
        with self._place(request.owner):
            warm = any(self.warm().values())
            cell = await self._launch(may_make=may_make)
            if cell is None:
                raise pool_exhausted(template, request.network, chosen=self._settings.cold_start)
            record = SandboxRecord(
                name=f"sbx-{secrets.token_hex(6)}",
                owner=request.owner,
                session=request.session,
                template=template,
                image=self.image,
                network=request.network,
                status="Ready",
                created=self._clock(),
                ttl=ttl,
                idle_timeout=idle_timeout,
                has_secrets=bool(request.secrets),
                metadata=request.metadata,
            )
            self._secrets.given[record.name] = request.secrets
            self._attach(record, cell)
        await self.touch(record.name)
        if self._sweeper is None:
            await self.delete(record.name)
            await self.check()
        return replace(self._live[record.name], fresh=True, warm=warm)

    @contextlib.contextmanager
    def _place(self, owner: str) -> Iterator[None]:
        """Hold a place for a sandbox while it starts. Raises SandpodError: max_sessions or pool_exhausted."""
        live = Counter(r.owner for r in self._live.values()) + self._starting
        if live[owner] >= self._settings.max_sandboxes_per_owner:
            message = f"You have {live[owner]} sandboxes, which is the most you can have."
            raise SandpodError(ErrorCode.MAX_SESSIONS, message, next_step="Close one that you no longer need.")
        if live.total() >= self._settings.max_sandboxes:
            message = f"All {self._settings.max_sandboxes} sandboxes of this server are in use."
            step = "Close one that you no longer need, or try again later."
            raise SandpodError(ErrorCode.POOL_EXHAUSTED, message, next_step=step)
        self._starting[owner] += 1
        try:
            yield
        finally:
            self._starting -= Counter([owner])

    def _attach(self, record: SandboxRecord, cell: Cell) -> None:
        self._live[record.name] = replace(record, conditions=ready(self._clock()))
        self._cells[record.name] = cell
        self._watchers[record.name] = asyncio.create_task(self._watch(record.name, cell))
        self._changed.set()

    async def _watch(self, name: str, cell: Cell) -> None:
        """Record the end of a sandbox that ended by itself."""
        why = await cell.ending()
        logger.warning("sandbox %s ended by itself: %s", name, why[1])
        self._end(name, ("Failed", *why))

    def _end(self, name: str, why: tuple[Status, Reason, str] | None = None) -> asyncio.Task[None] | None:
        """Start to end a live sandbox, if there is one. Its record stays for a while if there is a reason to give."""
        record = self._live.pop(name, None)
        if record is None:
            return None
        if why is not None:
            status, reason, message = why
            seen = conditions_of(*why, self._clock())
            self._ended[name] = replace(record, status=status, reason=reason.value, message=message, conditions=seen)
        self._busy.pop(name, None)
        self._secrets.given.pop(name, None)
        self._changed.set()
        task = asyncio.ensure_future(self._finish(self._cells.pop(name), self._watchers.pop(name)))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    @staticmethod
    async def _finish(cell: Cell, watcher: asyncio.Task[None]) -> None:
        watcher.cancel()
        await cell.end()
        await asyncio.wait([watcher])

    def _expire(self) -> float:
        """End the sandboxes whose time is over. Return the seconds after which to look again, if nothing changes."""
        now = self._clock()
        for record in [r for r in self._live.values() if r.expires is not None and now >= r.expires]:
            is_old = now >= _later(record.created, record.ttl)
            reason = Reason.TTL_EXPIRED if is_old else Reason.IDLE_TIMEOUT
            self._end(record.name, ("Expired", reason, SENTENCES[reason]))
        ends = (record.expires for record in self._live.values() if record.expires is not None)
        return min([_SWEEP_SECONDS, *((end - now).total_seconds() for end in ends)])

    async def _sweep(self) -> None:
        while True:
            self._changed.clear()
            # Not `wait_for`: Python 3.11's forgets a cancel that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._expire()):
                    await self._changed.wait()


def _later(time: datetime, seconds: float) -> datetime:
    return time + timedelta(seconds=seconds)
