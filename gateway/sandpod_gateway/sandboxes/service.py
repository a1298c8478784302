"""Who holds which sandbox, and the one connection to each that is in use.

Every handle that comes from outside goes through `find`, which looks among the caller's sandboxes and no others:
another's is answered exactly like one that does not exist.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import anyio

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.audit.act import note
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.backends.base import Backend, ClaimRequest, SandboxRecord, TemplateInfo
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.runner.connection import RunnerConnection, open_connection
from sandpod_gateway.runner.demux import ConnectionLostError
from sandpod_gateway.sandboxes.admission import claim
from sandpod_gateway.sandboxes.endings import forgotten, gone, unanswered, unusable
from sandpod_gateway.sandboxes.secrets import Secrets
from sandpod_gateway.sandboxes.slot import Slot
from sandpod_gateway.usage.meter import Meter
from sandpod_telemetry import log_context, tracing
from sandpod_telemetry.attributes import SANDBOX

DEFAULT_SESSION: Final = "default"
IDLE_CONNECTION: Final = 300.0  # seconds after which an unused stream is closed: each costs the API server too
SWEEP_SECONDS: Final = IDLE_CONNECTION / 10  # between two looks for such streams
MAX_REPORTED: Final = 256  # lost contexts that are remembered of one sandbox: their names are the caller's
TOUCH_EVERY: Final = 10.0  # seconds; the backend bounds its writes
_USABLE: Final = frozenset({"Ready", "Suspended"})  # takes calls now, or once it is resumed


class Sandboxes:
    """The sandboxes of all callers, as this gateway uses them."""

    def __init__(self, backend: Backend, metrics: Metrics, meter: Meter) -> None:
        self._backend, self._metrics, self.meter = backend, metrics, meter
        self.secrets = Secrets(backend.secret_source())
        self._slots: defaultdict[str, Slot] = defaultdict(Slot)

    async def resolve(self, owner: str, handle: str | None, *, make: bool = True) -> SandboxRecord:
        """Return the caller's sandbox of that handle or name, or its default one; a suspended one is resumed.

        With `make` a default sandbox is created when there is none; calls that only read must not. Raises
        session_not_found (it does not exist, has ended or is someone else's), sandbox_lost, or the backend's refusal.
        """
        if not handle or handle == DEFAULT_SESSION:
            record = await self._default(owner, make=make)
        else:
            record = await self._awake(await self.find(owner, handle))
        await self.secrets.of(record)
        return record

    async def _awake(self, record: SandboxRecord) -> SandboxRecord:
        """Return the sandbox once it takes calls."""
        if record.status in {"Suspended", "Pending"}:
            await self.disconnect(record.name)  # an earlier stream leads to a pod that is gone
            with self._metrics.claim() as claimed:
                claimed.how = "resumed" if record.status == "Suspended" else "held"
                record = await self._backend.wake(record.name) or record
        note(sandbox=record.name)
        if record.status != "Ready":
            raise unusable(record)
        return record

    async def _default(self, owner: str, *, make: bool) -> SandboxRecord:
        record = _named(await self.list(owner), DEFAULT_SESSION)
        if record is not None and record.status in _USABLE:
            return await self._awake(record)
        if not make:
            message = "You have no default sandbox now, so there are no files in it."
            step = "Run a program or write a file to start one, or name a sandbox from list_sandboxes."
            raise SandpodError(ErrorCode.SESSION_NOT_FOUND, message, cause=gone(record), next_step=step)
        made = await self.create(ClaimRequest(owner=owner, session=DEFAULT_SESSION))
        if sentence := gone(record):
            self._slots[made.name].replaces = sentence
        return made

    async def create(self, request: ClaimRequest) -> SandboxRecord:
        """Claim a sandbox. Raises as `admission.claim`, or forbidden where the caller's key has other templates."""
        if (allowed := current_caller().templates) is not None:
            request = replace(request, template=request.template or allowed[0])
            if request.template not in allowed:
                message, step = f"Your key has no template {request.template}.", f"Use {' or '.join(allowed)}."
                raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)
        with self._metrics.claim() as counted:
            record = await claim(self._backend, self.meter, request)
            counted.how = ("warm" if record.warm else "cold") if record.fresh else "held"
        if allowed is not None and record.template not in allowed:  # the session's sandbox was there already
            message = f"Your sandbox of that name has template {record.template}, which your key may not use."
            step = "Call create_sandbox with another name, and use its handle."
            raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)
        if record.fresh:
            self.secrets.claimed(record, request.secrets)
        else:
            await self.secrets.confirm(record, request.secrets)
        note(sandbox=record.name, template=record.template)
        return record

    async def list(self, owner: str) -> list[SandboxRecord]:
        """Return the caller's sandboxes, oldest first."""
        allowed, records = current_caller().templates, await self._backend.list(owner)
        return records if allowed is None else [record for record in records if record.template in allowed]

    async def templates(self) -> tuple[TemplateInfo, ...]:
        """Return the templates that claims may name. Raises backend_unavailable, or forbidden: no such tenant."""
        caller = current_caller()
        allowed, templates = caller.templates, await self._backend.templates(caller.owner)
        return templates if allowed is None else tuple(each for each in templates if each.name in allowed)

    async def keep_busy(self, name: str, seconds: float) -> None:
        """Record that a background run may go on for so many seconds. Raises backend_unavailable."""
        await self._backend.keep_busy(name, seconds)

    async def owner_of(self, name: str) -> str | None:
        """Return whose a sandbox is, which no caller may learn; None when there is none of that name, or not yet."""
        with contextlib.suppress(SandpodError):
            return record.owner if (record := await self._backend.get(name)) is not None else None
        return None

    async def find(self, owner: str, handle: str) -> SandboxRecord:
        """Return the caller's sandbox of that handle or name, even one that has ended. Raises session_not_found.

        It is looked for among the caller's alone: whatever there is of others makes no difference, not even in time.
        """
        records = await self.list(owner)
        record = next((each for each in records if each.name == handle), None) or _named(records, handle)
        if record is None:
            step = "Call list_sandboxes, or leave `sandbox` out to use your default one."
            raise SandpodError(ErrorCode.SESSION_NOT_FOUND, "There is no such sandbox.", next_step=step)
        note(sandbox=record.name)
        return record

    def lost_hint(self, record: SandboxRecord, context: str | None) -> str | None:
        """Return, for the first run only, what a context lost in a resume, or which default sandbox is gone."""
        replaces, lost = self.replaced(record.name), forgotten(record)
        reported, key = self._slots[record.name].reported, f"{record.resumed} {context}"
        if context is None or lost is None or key in reported or len(reported) >= MAX_REPORTED:
            return replaces
        reported.add(key)
        return lost

    def replaced(self, name: str) -> str | None:
        """Return, the first time only, what became of the default sandbox that this one replaces."""
        slot = self._slots[name]
        sentence, slot.replaces = slot.replaces, None
        return sentence

    def running(self, name: str) -> int:
        """Return the number of runs in a sandbox, as far as this gateway knows."""
        return len(connection.runs) if (connection := self.connected(name)) is not None else 0

    def connected(self, name: str) -> RunnerConnection | None:
        """Return the connection to a sandbox, where this gateway has one."""
        connection = slot.connection if (slot := self._slots.get(name)) is not None else None
        return None if connection is None or connection.closed else connection

    async def delete(self, owner: str, handle: str, *, force: bool) -> str:
        """End a sandbox, by `force` even with a run in it; return its name. Raises session_not_found, session_busy."""
        record = await self.find(owner, handle)
        if not force and record.status == "Ready" and await self._live_runs(record):
            step = "Wait for it to end, or call close_sandbox with force=true."
            message = "A run or an installation is going on in this sandbox."
            raise SandpodError(ErrorCode.SESSION_BUSY, message, next_step=step)
        await self.discard(record)
        return record.name

    async def discard(self, record: SandboxRecord) -> None:
        """End a sandbox even if it is in use. Not stopped by the caller's cancellation.

        Its slot stays until the next sweep, so that callers that lose the connection can tell why.
        """
        with anyio.CancelScope(shield=True):
            slot = self._slots[record.name]
            slot.closing = True
            try:
                await self._backend.delete(record.name)
                self.meter.closed(record.name)
            except BaseException:
                slot.closing = False
                raise
            finally:
                await self._close(slot)

    async def _live_runs(self, record: SandboxRecord) -> bool:
        """Return whether runs are active; the runner is asked, as another gateway may have started one."""
        if self.running(record.name):
            return True
        try:
            async with self.connection(record) as connection:
                pong = await connection.ask("ping")
        except (ConnectionLostError, SandpodError):
            return False
        return bool(pong.header.get("runs"))

    def is_closing(self, name: str) -> bool:
        """Return whether this gateway is ending the sandbox."""
        return name in self._slots and self._slots[name].closing

    async def touch(self, record: SandboxRecord) -> None:
        """Note that a sandbox is in use now."""
        await self._backend.touch(record.name)

    @asynccontextmanager
    async def connection(self, record: SandboxRecord, *, use: bool = True) -> AsyncIterator[RunnerConnection]:
        """Give the sandbox's connection, which is opened if there is none. Raises sandbox_lost.

        It is in use from here on, unless that is no `use` of its owner's.
        """
        slot = self._slots[record.name]
        slot.users += 1
        try:
            async with slot.lock:
                if slot.connection is None or slot.connection.closed:
                    slot.connection = await self._connect(record, slot)
            if use:
                await self._backend.touch(record.name)  # which decides how often it records that
            yield slot.connection
        finally:
            slot.users -= 1
            slot.last_used = time.monotonic()

    async def _connect(self, record: SandboxRecord, slot: Slot) -> RunnerConnection:
        start, streams, name = time.perf_counter(), self._metrics.streams, record.name
        try:
            # What reads the stream outlives the call: its log lines name no run.
            with log_context.bound(owner=record.owner, sandbox=name), tracing.span("sandbox.stream", {SANDBOX: name}):
                connection = await open_connection(await self._backend.open_stream(name))
        except (SandpodError, ConnectionLostError) as error:
            streams.labels("failed").inc()
            if isinstance(error, SandpodError):
                raise
            raise unanswered(await self._backend.get(name), error) from error
        self._metrics.stream_seconds.observe(time.perf_counter() - start)
        streams.labels("opened" if slot.connection is None else "resumed").inc()
        connection.on_broken = lambda: streams.labels("broken").inc(0 if slot.closing else 1)
        return connection

    async def keep_alive(self, record: SandboxRecord) -> None:
        """Touch a sandbox periodically until cancelled: one with a long quiet run is not idle."""
        # Several fit into the shortest idle timeout, even where the backend skips every other one.
        pause = min(TOUCH_EVERY, record.idle_timeout / 4)
        while True:
            await asyncio.sleep(pause)
            await self._backend.touch(record.name)

    async def sweep(self) -> None:
        """Close unused connections and those of sandboxes that are gone."""
        oldest = time.monotonic() - IDLE_CONNECTION
        for name, slot in list(self._slots.items()):
            if slot.users or slot.lock.locked():
                continue
            unused = slot.connection is None or slot.connection.closed or slot.last_used < oldest
            if unused or await self._is_gone(name):
                await self.disconnect(name)

    async def _is_gone(self, name: str) -> bool:
        with contextlib.suppress(SandpodError):
            return await self._backend.get(name) is None
        return False  # nobody knows

    async def disconnect(self, name: str) -> None:
        """Close the connection to a sandbox, if there is one."""
        if (slot := self._slots.pop(name, None)) is not None:
            await self._close(slot)

    async def _close(self, slot: Slot) -> None:
        with contextlib.suppress(OSError):
            if slot.connection is not None:
                await slot.connection.close()

    def open_streams(self) -> int:
        """Return how many connections are open."""
        return sum(1 for slot in self._slots.values() if slot.connection is not None and not slot.connection.closed)

    async def close(self) -> None:
        """Close all connections."""
        for name in list(self._slots):
            await self.disconnect(name)


def _named(records: Sequence[SandboxRecord], session: str) -> SandboxRecord | None:
    """Return the sandbox of that name: one that can be used, or else the latest one."""
    named = [record for record in records if record.session == session]
    return next((record for record in named if record.status in _USABLE), named[-1] if named else None)
