"""One run from call to result: limits, start, stream, cancel, end, metrics.

`sandboxes` decides whose sandbox it is, and the runner starts and stops programs: whatever they do, a run ends here.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final

import anyio

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Outcome, RunResult
from sandpod_gateway.audit.act import note
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.content import Answer
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import RunLimits
from sandpod_gateway.metrics import Metrics, language_label
from sandpod_gateway.packages.installer import Installer
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.demux import BrokenProtocolError, ConnectionLostError
from sandpod_gateway.runner.messages import Ended
from sandpod_gateway.runner.run_ids import run_id
from sandpod_gateway.runs.hints import find_hint
from sandpod_gateway.runs.progress import OutputStream, Send
from sandpod_gateway.runs.recorder import Recorder
from sandpod_gateway.runs.request import ActiveRun, RunRequest, check_run, start_run
from sandpod_gateway.runs.result import RunEnd, build_answer
from sandpod_gateway.runs.tail import TailReader
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_gateway.usage.amounts import account_of
from sandpod_runner.protocol import messages as protocol
from sandpod_telemetry import attributes, log_context, tracing

logger = logging.getLogger(__name__)

OVERTIME: Final = 10.0  # seconds after its timeout in which the runner must have reported a run's end
ATTEMPTS: Final = 5  # streams that one run may use: each may be lost with the API server or the network to it
REOPEN_PAUSE: Final = 1.0  # seconds; the runner keeps a run without a stream for 10 of them
CANCEL_WAIT: Final = 5.0  # seconds that a cancelled call waits for the program's end
FRESH_MARGIN: Final = 120  # seconds that a sandbox for one run may outlive it when nobody is left to delete it


class Runs:
    """Runs code in callers' sandboxes."""

    def __init__(self, sandboxes: Sandboxes, limits: RunLimits, metrics: Metrics, installer: Installer) -> None:
        self._sandboxes = sandboxes
        self._installer = installer
        self._limits = limits
        self._metrics = metrics

    def check(self, request: RunRequest) -> None:
        """Raise what `check_run` does, before there is a sandbox."""
        check_run(request, self._limits)

    async def run(
        self,
        owner: str,
        request: RunRequest,
        *,
        sandbox: str | None = None,
        fresh: ClaimRequest | None = None,
        send: Send | None = None,
    ) -> Answer[RunResult]:
        """Run a program in a sandbox, by default the caller's own, or in a fresh one, and return what it did.

        `send` takes output while the program runs. Raises SandpodError when it was refused before it began.
        """
        self.check(request)
        if request.packages:
            self._installer.check(request.packages, request.language)
        if fresh is not None and (sandbox is not None or request.context is not None or request.key is not None):
            message = "fresh goes with none of sandbox, context and idempotency_key: nothing of its sandbox stays."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step="Leave one of them out.")
        with self._sandboxes.meter.running(account_of(current_caller())):
            if fresh is None:
                return await self._run_in(await self._sandboxes.resolve(owner, sandbox), request, send)
            async with self._fresh(request, fresh) as record:
                return await self._run_in(record, request, send, fresh=True)

    @asynccontextmanager
    async def _fresh(self, request: RunRequest, claim: ClaimRequest) -> AsyncIterator[SandboxRecord]:
        """Make a sandbox for one run. Should this gateway die meanwhile, its short lifetime ends it."""
        installing = math.ceil(self._installer.timeout) if request.packages else 0
        ttl = math.ceil(self._limits.timeout(request.timeout)) + installing + FRESH_MARGIN
        record = await self._sandboxes.create(replace(claim, ttl=ttl, idle_timeout=FRESH_MARGIN))
        try:
            yield record
        finally:
            await self._sandboxes.discard(record)

    async def _run_in(
        self, record: SandboxRecord, request: RunRequest, send: Send | None, *, fresh: bool = False
    ) -> Answer[RunResult]:
        if request.packages:
            await self._installer.require(record, request.packages, request.language)
        lost = self._sandboxes.lost_hint(record, request.context)
        progress = OutputStream(send) if send is not None else None
        secrets = await self._sandboxes.secrets.of(record)
        recorder = Recorder(
            self._limits.output_cap, strip_ansi=request.strip_ansi, progress=progress, masker=secrets.masker
        )
        active = ActiveRun(record=record, request=request, recorder=recorder, secrets=secrets)
        keeper = asyncio.create_task(self._sandboxes.keep_alive(record))
        try:
            with self._metrics.active_runs.track_inprogress(), self._traced(active), self._metered(active):
                ended = (await self._until_end(active)).model_copy(update={"context": request.context})
                recorder.finish()
                if progress is not None:
                    await progress.finish()
                self._count(active, ended.outcome)
        finally:
            keeper.cancel()
            if progress is not None:
                progress.stop()
        self._metrics.progress_dropped.inc(recorder.progress_dropped)
        found = await find_hint(self._sandboxes, record, recorder, ended, request, fresh=fresh)
        end = RunEnd(sandbox=record.name, run=active.run, recorder=recorder, ended=ended, hints=(lost, found))
        return build_answer(end, request.max_output or self._limits.output_chars)

    async def _until_end(self, active: ActiveRun) -> Ended:
        """Start the program and wait for its end, over another connection where one is lost. A lost sandbox is one."""
        deadline = time.monotonic() + self._limits.timeout(active.request.timeout) + OVERTIME
        try:
            for attempt in range(ATTEMPTS):
                try:
                    ended = await self._attend(active, deadline)
                    if ended.outcome != Outcome.SANDBOX_LOST or not self._sandboxes.is_closing(active.record.name):
                        return ended
                    break
                except BrokenProtocolError as error:
                    return self._lost(active, f"The sandbox's stream was closed: {error}.")
                except ConnectionLostError:
                    if self._sandboxes.is_closing(active.record.name) or time.monotonic() > deadline:
                        break
                except SandpodError as error:
                    if attempt == 0:
                        raise
                    if error.code != ErrorCode.BACKEND_UNAVAILABLE:
                        break  # the sandbox is gone, or its runner does not know the run any more
                    await asyncio.sleep(REOPEN_PAUSE)
        except asyncio.CancelledError:
            self._count(active, Outcome.CANCELLED)
            raise
        return self._lost(active)

    async def _attend(self, active: ActiveRun, deadline: float) -> Ended:
        """Start the program unless it was started, and wait for its end over one connection."""
        async with self._sandboxes.connection(active.record) as connection:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    return await self._ended(connection, active)
            except TimeoutError:
                # A runner that is this late does not listen any more: the sandbox can't be used.
                await connection.close()
                raise ConnectionLostError from None
            except asyncio.CancelledError:  # the caller has gone: see the program end
                with anyio.CancelScope(shield=True):
                    if not await connection.stop_run(active.run, wait=CANCEL_WAIT):
                        logger.warning("a cancelled run did not end in time; its sandbox's stream is closed")
                        await connection.close()
                raise

    async def _ended(self, connection: RunnerConnection, active: ActiveRun) -> Ended:
        if active.cursor is None:
            handle = active.handle = await start_run(connection, active, self._limits)
            run = await connection.wait_for(handle.accepted)
            if run == active.run:
                active.accepted = True
                if handle.ended.cancelled():  # it was started already, over a connection that is lost
                    received = {name: stream.received for name, stream in active.recorder.streams.items()}
                    handle = await connection.follow_run(run, received, active.recorder, acks=True)
                    active.handle = handle
                return await connection.wait_for(handle.ended)
            active.run, active.cursor = run, 0
        # All that an earlier call's run with the same key wrote, and its end; the run stays that call's.
        tail = TailReader(connection, active.run, active.cursor, active.recorder)
        try:
            while tail.ended is None:
                await tail.read(protocol.FILE_PART, math.inf, to_end=True)
        finally:
            active.cursor = tail.cursor
        return tail.ended

    @contextmanager
    def _traced(self, active: ActiveRun) -> Iterator[None]:
        name, language = run_id(active.record.name, active.run), language_label(active.request.language)
        log_context.note(run=name)
        known = {attributes.SANDBOX: active.record.name, attributes.RUN: name, attributes.LANGUAGE: language}
        with tracing.span("sandbox.run", known):
            yield

    @contextmanager
    def _metered(self, active: ActiveRun) -> Iterator[None]:
        """Charge what a run uses to its caller."""
        account, sandbox, meter = account_of(current_caller()), active.record.name, self._sandboxes.meter
        seconds = self._limits.timeout(active.request.timeout)
        attended = meter.ongoing.attend(account, sandbox, seconds, active.so_far)
        with meter.busy(sandbox):
            try:
                yield
            finally:
                moved = active.moved if active.cursor is None else None  # else it is an earlier call's
                meter.ongoing.left(attended, cpu=active.cpu, elapsed=active.elapsed, moved=moved)

    def _lost(self, active: ActiveRun, cause: str = "The sandbox went away while the program ran.") -> Ended:
        if self._sandboxes.is_closing(active.record.name):
            outcome, detail = Outcome.CANCELLED, "The sandbox was closed while the program ran."
        else:
            outcome, detail = Outcome.SANDBOX_LOST, f"{cause} Whether the program ended is not known."
        return Ended(outcome=outcome, detail=detail, duration_ms=active.elapsed * 1e3)

    def _count(self, active: ActiveRun, outcome: str) -> None:
        """Count a run that has ended, and log it without its code and output."""
        record, request = active.record, active.request
        fields = (run_id(record.name, active.run), record.owner, request.language, outcome, active.elapsed)
        note(run_id=fields[0], language=request.language, run_outcome=outcome)
        logger.info("run %s ended: owner %s, %s, %s, %.3f s", *fields)
        tracing.note({attributes.RUN: fields[0], attributes.OUTCOME: outcome})
        if outcome == Outcome.SANDBOX_LOST:
            tracing.fail(outcome)
        language = language_label(request.language)
        self._metrics.runs.labels(language, outcome).inc()
        self._metrics.run_seconds.labels(language).observe(active.elapsed)
        for name, stream in active.recorder.streams.items():
            self._metrics.output_bytes.labels(name).inc(stream.taken)
