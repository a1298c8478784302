"""Charges what goes on whether or not a call waits for it: the time of sandboxes, and the ends of background runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import Caller, owner_of, tenant_of
from sandpod_gateway.backends.base import Backend
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.demux import ConnectionLostError
from sandpod_gateway.runner.messages import Tail, checked
from sandpod_gateway.runner.run_ids import split_run_id
from sandpod_gateway.runs.background import used_by
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_gateway.usage.amounts import SECOND, Account, account_of
from sandpod_gateway.usage.document import BackgroundRun
from sandpod_gateway.usage.replica import Replica
from sandpod_gateway.usage.settings import UsageSettings
from sandpod_gateway.usage.stores import FolderStore

SANDBOX_SECONDS: Final = 5.0
"""Between two looks at the sandboxes: the end of one that another gateway closes is known to this."""
BACKGROUND_SECONDS: Final = 10.0
"""Between two looks at background runs that have not ended."""
TEMPLATES_SECONDS: Final = 60.0
"""Between two looks at the templates' memory limits."""
RETRY_SECONDS: Final = 1.0
"""Until usage is shared with other gateways again after a failure."""

logger = logging.getLogger(__name__)


class Accounting:
    """Charges the sandboxes and background runs that this gateway's usage document has."""

    def __init__(self, backend: Backend, sandboxes: Sandboxes, settings: UsageSettings, metrics: Metrics) -> None:
        """Charge them; where the backend has a place for usage, they and their charges outlive this gateway.

        Raises StartError: the folder for usage can't be written.
        """
        self._backend = backend
        self._sandboxes = sandboxes
        self._meter = sandboxes.meter
        self._learned = float("-inf")
        store = backend.usage_store()
        self._shared = store is not None
        if store is None and settings.directory is not None:
            store = FolderStore(settings.directory)
            store.open()
        self._replica = None if store is None else Replica(store, self._meter, metrics, days=settings.days)

    async def open(self) -> None:
        """Learn what is known so far. Raises SandpodError: the usage that is kept can't be read."""
        await self.learn()
        if self._replica is not None:
            await self._replica.start()

    def work(self) -> list[tuple[float, Callable[[], Awaitable[None]]]]:
        """Return what is to be repeated meanwhile, each with the pause before it in seconds."""
        replica = self._replica
        loops = () if replica is None else (replica.follow, replica.publish, replica.keep)
        charges = [(SANDBOX_SECONDS, self.charge_sandboxes), (BACKGROUND_SECONDS, self.charge_background)]
        return [*charges, *((RETRY_SECONDS, loop) for loop in loops)]

    def account_of_link(
        self, caller_of_key: Callable[[bytes], Caller | None], key_id: bytes, owner: str, sandbox: str
    ) -> Account:
        """Return to whom the use of a link is charged: its maker, who may have signed in without a key."""
        caller, holder, of_owner = caller_of_key(key_id), self._meter.holder(sandbox), account_of(Caller(owner))
        if caller is None and holder is not None and holder[:2] == of_owner[:2]:
            return holder
        return of_owner if caller is None else account_of(caller)

    async def charge_sandboxes(self) -> None:
        """Charge the time since the last look."""
        await self.learn()
        self._meter.accrue_runs()
        for name in self._held():
            await self._charge(name)

    async def charge_background(self) -> None:
        """Look which background runs have ended, and charge these."""
        await asyncio.gather(*(self._look(run, of) for run, of in list(self._meter.document.background.items())))

    async def close(self) -> None:
        """Charge all up to now; sandboxes that end with this gateway have ended."""
        await self.charge_sandboxes()
        for name in self._held() if not self._shared else ():
            self._meter.closed(name)
        try:
            if self._replica is not None:
                await self._replica.close()
        except SandpodError as error:
            # What was kept before is there, and the rest of the server has to be closed.
            logger.error("the last of usage is lost: %s %s", error.message, error.next_step)  # noqa: TRY400

    def _held(self) -> list[str]:
        return [name for name, use in self._meter.document.sandboxes.items() if use.until is not None]

    async def _charge(self, name: str) -> None:
        try:
            record = await self._backend.get(name)
        except SandpodError:
            return  # its tenant is not available yet
        now = self._meter.clock()
        use = self._meter.document.sandboxes.get(name)
        if use is None or use.until is None:
            return
        if record is None:
            # While no gateway was there, nobody could use it, so that it ended when it was to.
            end = min(now, use.expires / SECOND) if self._shared and use.expires else now
            self._meter.closed(name, end if self._shared else use.until / SECOND)
            return
        use.template = record.template
        use.expires = round(_seconds(record.expires, now) * SECOND)
        use.memory = use.memory or self._meter.memory.get((tenant_of(record.owner), record.template), 0)
        if record.status in {"Expired", "Failed"}:
            self._meter.closed(name, min(now, _seconds(record.expires, now)))
        else:
            self._meter.accrue(name, now, has_pod=record.status != "Suspended")

    async def learn(self) -> None:
        """Learn the memory limits of templates, unless they were learned within the last minute."""
        now = self._meter.clock()
        if now - self._learned < TEMPLATES_SECONDS:
            return
        self._learned = now
        for tenant in {"", *(use.account.tenant for use in self._meter.document.sandboxes.values())}:
            try:
                templates = await self._backend.templates(owner_of(tenant, ""))
            except SandpodError as error:
                if error.code != ErrorCode.FORBIDDEN:  # as of a tenant that was removed
                    logger.warning("the memory limits of templates can't be read: %s", error)
                continue
            self._meter.memory.update(((tenant, each.name), each.memory) for each in templates)

    async def _look(self, run: str, of: BackgroundRun) -> None:
        try:
            record = await self._backend.get(of.sandbox)
            if record is None or record.status not in {"Ready", "Pending"}:
                self._meter.background_ended(run, None, 0)
            elif record.status == "Ready":
                async with self._sandboxes.connection(record, use=False) as connection:
                    await self._ask(run, connection)
        except ConnectionLostError:
            return  # the next look will tell
        except SandpodError as error:
            if error.code == ErrorCode.NOT_FOUND:  # forgotten, as after a suspension
                self._meter.background_ended(run, None, 0)

    async def _ask(self, run: str, connection: RunnerConnection) -> None:
        fields = {"run": split_run_id(run)[1], "cursor": 0, "wait": 0, "limit": 1}
        tail = checked(Tail, await connection.ask("tail", fields))
        if tail.end is not None:
            self._meter.background_ended(run, *used_by(tail.end))


def _seconds(time: datetime | None, default: float) -> float:
    return default if time is None else time.timestamp()
