"""Backends of tenants that are made when their first caller comes, at this gateway or at another one.

What there is, is followed: to find a tenant that is known costs no request, and a name of an unknown one costs none
either. To make one takes seconds, so that all callers of a tenant wait for one and the same attempt, and a failure is
remembered for a while: no caller can make the cluster work without end.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from cachetools import TTLCache

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.audit.act import event
from sandpod_gateway.backends.base import Backend
from sandpod_gateway.backends.starting import try_start
from sandpod_gateway.errors import SandpodError

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 2.0  # between two tries to start a tenant's backend, or to follow the tenants
FAILED_SECONDS: Final = 5  # for which a failure is remembered
MAX_ATTEMPTS: Final = 20  # tenants that are made at a time
_MAX_FAILURES: Final = 1000
_STARTING: Final = "Your tenant's sandboxes are not available yet."


class TenantState(NamedTuple):
    """A tenant that was asked for."""

    place: str | None = None  # where its sandboxes are; None while it has none
    refused: bool = False  # whether it gets none unless an administrator changes something


class TenantSource(Protocol):
    """Where tenants are made."""

    async def make(self, tenant: str) -> bool:
        """Ask for a tenant; return whether nobody has asked before. Raises SandpodError."""

    async def follow(self, use: Callable[[Mapping[str, TenantState]], None]) -> None:
        """Pass on all tenants, now and at each change. Raises SandpodError: backend_unavailable."""


class _Part:
    """A tenant's backend, and the task that keeps it."""

    def __init__(self, tenant: str, place: str, backend: Backend) -> None:
        self.tenant, self.place, self.backend = tenant, place, backend
        self.started = False
        self.tried = asyncio.Event()  # whether its first start has ended, well or not
        self.task: asyncio.Task[None] | None = None


class FirstUse:
    """The tenants of a source."""

    def __init__(self, source: TenantSource, backend: Callable[[str], Backend], *, timeout: float, limit: int) -> None:
        """Use a backend for the place of each tenant.

        `timeout` is the longest wait for a tenant, seconds, and `limit` the most tenants that there may be.
        """
        self._source, self._backend, self._timeout, self._limit = source, backend, timeout, limit
        self._known: Mapping[str, TenantState] = {}
        self._parts: dict[str, _Part] = {}
        self._attempts: dict[str, asyncio.Task[Backend]] = {}
        self._making: set[str] = set()  # tenants that hold a place until they are known
        self._failures: TTLCache[str, SandpodError] = TTLCache(_MAX_FAILURES, FAILED_SECONDS)
        self._first = asyncio.Event()  # whether the source has been read, or can't be
        self._news = asyncio.Event()  # replaced at each change
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Follow the source; return when the tenants that it has are available, or have been tried."""
        self._run(self._follow(), "tenants")
        await self._first.wait()
        await asyncio.gather(*(part.tried.wait() for part in self._parts.values()))

    async def close(self) -> None:
        """Close all."""
        tasks = {*self._tasks, *self._attempts.values()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def backends(self) -> Iterator[tuple[str, Backend]]:
        """Return the tenants that have a backend."""
        return ((part.tenant, part.backend) for part in self._parts.values())

    def find(self, tenant: str) -> Backend | None:
        """Return the backend of a tenant that is there already, if any. Costs no request to a server.

        Raises SandpodError: backend_unavailable, while it starts.
        """
        part = self._parts.get(tenant)
        if part is not None and not part.started:
            raise _unavailable(_STARTING)
        return None if part is None else part.backend

    async def of_caller(self, tenant: str) -> Backend:
        """Return the backend of a caller's tenant, which is made if need be.

        Raises:
            SandpodError: forbidden, where there can be no such tenant; backend_unavailable, where it takes too long.
        """
        part = self._parts.get(tenant)
        if part is not None and part.started:
            return part.backend
        if (failure := self._failures.get(tenant)) is not None:
            step, after = failure.next_step, failure.retry_after
            raise SandpodError(failure.code, failure.message, next_step=step, retry_after=after)
        attempt = self._attempts.get(tenant)
        if attempt is None:
            if len(self._attempts) >= MAX_ATTEMPTS:
                raise _unavailable("Too many tenants are being made at this moment.")
            attempt = self._attempts[tenant] = asyncio.create_task(self._attempt(tenant), name=f"tenant {tenant}")
            attempt.add_done_callback(lambda ended: self._ended(tenant, ended))
        return await asyncio.shield(attempt)

    def _ended(self, tenant: str, attempt: asyncio.Task[Backend]) -> None:
        del self._attempts[tenant]
        error = None if attempt.cancelled() else attempt.exception()
        if isinstance(error, SandpodError):
            self._failures[tenant] = error

    async def _attempt(self, tenant: str) -> Backend:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._made(tenant)
        except TimeoutError as error:
            raise _unavailable(_STARTING) from error

    async def _made(self, tenant: str) -> Backend:
        if tenant in self._known:
            return await self._available(tenant)
        if len(self._making | self._known.keys()) >= self._limit:
            message = f"This server has no tenant {tenant}, and as many as it may have."
            raise SandpodError(ErrorCode.FORBIDDEN, message, next_step="Tell the administrator.")
        self._making.add(tenant)
        try:
            if await self._source.make(tenant):
                event("tenant", tenant=tenant)  # its user is the caller for whom this attempt was begun
            return await self._available(tenant)
        finally:
            self._making.discard(tenant)

    async def _available(self, tenant: str) -> Backend:
        while True:
            news = self._news
            part = self._parts.get(tenant)
            if part is not None and part.started:
                return part.backend
            if self._known.get(tenant, TenantState()).refused:
                step = "Tell the administrator, to whom `kubectl get sandboxtenants` says why."
                raise SandpodError(ErrorCode.FORBIDDEN, f"This server can have no tenant {tenant}.", next_step=step)
            await news.wait()

    async def _follow(self) -> None:
        while True:
            try:
                await self._source.follow(self._use)
            except SandpodError as error:
                logger.error("tenants are not followed: %s %s", error.message, error.next_step)  # noqa: TRY400
            self._first.set()
            await asyncio.sleep(RETRY_SECONDS)

    def _use(self, tenants: Mapping[str, TenantState]) -> None:
        """Have a backend for each tenant that has a place, and for no other."""
        self._known = tenants
        for part in list(self._parts.values()):
            if tenants.get(part.tenant, TenantState()).place != part.place and part.task is not None:
                del self._parts[part.tenant]
                part.task.cancel()
        for tenant, state in tenants.items():
            if state.place is not None and tenant not in self._parts:
                part = self._parts[tenant] = _Part(tenant, state.place, self._backend(state.place))
                part.task = self._run(self._keep(part), f"backend of tenant {tenant}")
        self._first.set()
        self._tell()

    async def _keep(self, part: _Part) -> None:
        """Start a backend, however often that fails, and close it at the end."""
        try:
            while not part.started:
                part.started = await try_start(part.tenant, part.backend)
                part.tried.set()
                self._tell()
                if not part.started:
                    await asyncio.sleep(RETRY_SECONDS)
            await asyncio.Event().wait()
        finally:
            part.tried.set()
            if part.started:
                part.started = False
                await part.backend.close()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _run(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _unavailable(message: str) -> SandpodError:
    step = "Try again in some seconds; if it stays so, tell the administrator."
    return SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step, retry_after=FAILED_SECONDS)
