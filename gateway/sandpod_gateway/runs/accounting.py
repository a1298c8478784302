"""Charges what goes on whether or not a call waits for it: the time of sandboxes, and the ends of background runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import Caller, owner_of, tenant_of
from sandpod_gateway.backends.base import Backend
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.demux import ConnectionLostError
from sandpod_gateway.runner.messages import Listing, Tail, checked
from sandpod_gateway.runner.run_ids import run_id, split_run_id
from sandpod_gateway.runs.background import used_by
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_gateway.usage.amounts import SECOND, Account, account_of
from sandpod_gateway.usage.document import MAX_SANDBOXES, BackgroundRun
from sandpod_gateway.usage.replica import Replica
from sandpod_gateway.usage.settings import UsageSettings
from sandpod_gateway.usage.stores import FolderStore

SANDBOX_SECONDS: Final = 5.0
"""Between two looks at the sandboxes: the end of one that another gateway closes is known to this."""
BACKGROUND_SECONDS: Final = 10.0
"""Between two looks at background runs that have not ended."""
TEMPLATES_SECONDS: Final = 60.0
"""Between two looks at the templates' memory limits."""
ADOPT_SECONDS: Final = 60.0
"""Age from which on what no gateway has written down is taken for that of one that was killed."""
FORGET_SECONDS: Final = 900.0
"""Age of sandboxes that are known to all documents but those that have forgotten them for want of room."""
FOUND_SECONDS: Final = 3600.0
"""Longest time of a run that was found, since nobody knows how long it may take."""
CLOSE_SECONDS: Final = 5.0
"""That the last look at background runs may take where they end with this gateway."""
_ENDED: Final = frozenset({"Failed", "Expired"})
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
        for name in self._meter.document.live:
            await self._charge(name)

    async def charge_background(self) -> None:
        """Look which background runs have ended, and charge these; look for what killed gateways have begun."""
        if self._meter.ongoing.has_inherited:
            await self._adopt()
        await asyncio.gather(*map(self._search, tuple(self._meter.ongoing.inherited)))
        await asyncio.gather(*(self._look(run, of) for run, of in self._meter.ongoing.background.items()))

    async def _adopt(self) -> None:
        """Count with sandboxes that no gateway has, since the one that claimed them was killed in that moment.

        It is done once by the one that takes over from it. Then they are older than all that is about to be written.
        """
        meter, now = self._meter, self._meter.clock()
        documents = [meter.document, *meter.others.documents]
        try:
            records = await self._backend.every() if self._shared else ()
        except SandpodError:
            return  # the next look will tell
        meter.ongoing.has_inherited = False
        if any(len(each.sandboxes) >= MAX_SANDBOXES for each in documents):
            return  # a full one has forgotten some
        known = {*meter.others.sandboxes, *(name for each in documents for name in each.sandboxes)}
        for record in records:
            age = now - record.created.timestamp()
            if record.name not in known and record.status not in _ENDED and ADOPT_SECONDS < age < FORGET_SECONDS:
                logger.info("sandbox %s, which a killed gateway has claimed, is counted from its claim on", record.name)
                account = account_of(Caller(record.owner))
                meter.claimed(account, record.name, record.template, record.created.timestamp())
                meter.ongoing.inherited.add(record.name)

    async def close(self) -> None:
        """Charge all up to now; sandboxes that end with this gateway have ended."""
        await self.charge_sandboxes()
        if not self._shared:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.charge_background()
            for name in self._meter.document.live:
                self._end(name, self._meter.clock())
        try:
            if self._replica is not None:
                await self._replica.close()
        except SandpodError as error:
            # What was kept before is there, and the rest of the server has to be closed.
            logger.error("the last of usage is lost: %s %s", error.message, error.next_step)  # noqa: TRY400

    def _end(self, name: str, at: float) -> None:
        """Charge a sandbox that ends with its gateway, at a time in seconds since 1970, and all that ends with it."""
        self._meter.ongoing.lost(name, at)
        self._meter.closed(name, at)

    async def _charge(self, name: str) -> None:
        try:
            record = await self._backend.get(name)
        except SandpodError:
            return  # its tenant is not available yet
        now = self._meter.clock()
        use = self._meter.document.sandboxes.get(name)
        if use is None or use.until is None:
            return
        if record is None and not self._shared:
            self._end(name, use.until / SECOND)
            return
        if record is None:
            # While no gateway was there, nobody could use it, so that it ended when it was to.
            self._meter.closed(name, min(now, use.expires / SECOND) if use.expires else now)
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
            if record is None and not self._shared and of.sandbox in self._meter.document.live:
                return  # it ended when its gateway did, which is known with the sandbox's time
            if record is None or record.status not in {"Ready", "Pending"}:
                self._meter.ongoing.background_ended(run, None, 0)
            elif record.status == "Ready":
                async with self._sandboxes.connection(record, use=False) as connection:
                    await self._ask(run, connection)
        except ConnectionLostError:
            return  # the next look will tell
        except SandpodError as error:
            if error.code == ErrorCode.NOT_FOUND:  # forgotten, as after a suspension
                self._meter.ongoing.background_ended(run, None, 0)

    async def _ask(self, run: str, connection: RunnerConnection) -> None:
        fields = {"run": split_run_id(run)[1], "cursor": 0, "wait": 0, "limit": 1}
        tail = checked(Tail, await connection.ask("tail", fields))
        if tail.end is not None:
            self._meter.ongoing.background_ended(run, *used_by(tail.end))

    async def _search(self, sandbox: str) -> None:
        """Count with the background runs of a sandbox that nobody knows, since their gateway was killed as they began.

        Those that began just now wait for the next look: a gateway that is there writes them down.
        """
        try:
            record, holder = await self._backend.get(sandbox), self._meter.holder(sandbox)
            if record is None or record.status != "Ready" or holder is None:
                self._meter.ongoing.inherited.discard(sandbox)
                return
            async with self._sandboxes.connection(record, use=False) as connection:
                listing = checked(Listing, await connection.ask("list"))
        except (ConnectionLostError, SandpodError):
            return  # the next look will tell
        documents = [self._meter.document, *self._meter.others.documents]
        began = {run_id(sandbox, run.run): run.started for run in listing.runs if run.detached and run.state == "live"}
        unknown = {run: at for run, at in began.items() if not any(run in each.background for each in documents)}
        young = {run for run, at in unknown.items() if self._meter.clock() - at < ADOPT_SECONDS}
        for run in unknown.keys() - young:
            self._meter.ongoing.found(holder, sandbox, run, began=unknown[run], seconds=FOUND_SECONDS)
        if not young:
            self._meter.ongoing.inherited.discard(sandbox)


def _seconds(time: datetime | None, default: float) -> float:
    return default if time is None else time.timestamp()
