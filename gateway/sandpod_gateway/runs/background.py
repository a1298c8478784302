"""Background runs and contexts: begun, read on, stopped and listed by calls that do not wait for a program.

Nothing is kept here: a run's name says in which sandbox it is, and its output and end are kept by the runner there. So
any gateway can go on where another one left off.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final, Literal, TypeVar

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import (
    ContextInfo,
    ContextList,
    ContextRestarted,
    RunInfo,
    RunList,
    RunOutput,
    RunStarted,
)
from sandpod_gateway.audit.act import note
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.content import Answer
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import RunLimits
from sandpod_gateway.metrics import language_label
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.messages import Ended, Listing, checked
from sandpod_gateway.runner.run_ids import is_own, no_such_run, run_id, split_run_id
from sandpod_gateway.runs.hints import find_hint
from sandpod_gateway.runs.recorder import Recorder
from sandpod_gateway.runs.request import ActiveRun, RunRequest, check_run, start_run
from sandpod_gateway.runs.result import RunEnd, build_reading
from sandpod_gateway.runs.tail import TailReader
from sandpod_gateway.sandboxes.endings import forgotten
from sandpod_gateway.sandboxes.requests import ask_runner
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_gateway.usage.amounts import account_of
from sandpod_runner.protocol import messages as protocol
from sandpod_telemetry import attributes, tracing

_T = TypeVar("_T")

READ_LIMIT: Final = 48 * 1024
"""Most bytes of output in one reading that is not cut: as JSON, twice, they stay below what clients accept."""
DISPLAYS_WAIT: Final = 10.0  # seconds that they may take from the sandbox
STOP_WAIT: Final = 5.0  # seconds that stop_run waits for the end


class BackgroundRuns:
    """Background runs and contexts of callers' sandboxes."""

    def __init__(self, sandboxes: Sandboxes, limits: RunLimits) -> None:
        self._sandboxes = sandboxes
        self._limits = limits

    async def start(self, owner: str, request: RunRequest, *, sandbox: str | None) -> RunStarted:
        """Begin a run that goes on whatever becomes of this call, this connection and this gateway.

        Raises SandpodError: it was refused, or whether it was begun is not known (sandbox_lost).
        """
        check_run(request, self._limits)
        account, meter = account_of(current_caller()), self._sandboxes.meter
        # The place is passed on to the run once that has begun, with nothing awaited in between.
        with meter.running(account):
            record = await self._sandboxes.resolve(owner, sandbox)
            secrets = await self._sandboxes.secrets.of(record)
            active = ActiveRun(record=record, request=request, recorder=Recorder(0), secrets=secrets)
            await self._sandboxes.keep_busy(record.name, self._limits.timeout(request.timeout))
            with tracing.span("sandbox.run", {attributes.SANDBOX: record.name, attributes.BACKGROUND: True}):
                run = await ask_runner(self._sandboxes, record, partial(self._begin, active), again=True)
                name = run_id(record.name, run)
                tracing.note({attributes.RUN: name, attributes.LANGUAGE: language_label(request.language)})
                note(run_id=name)
            if run == active.run:  # else it is an earlier call's, with the same key
                seconds = self._limits.timeout(request.timeout)
                meter.ongoing.background_began(account, record.name, name, sent=request.size, seconds=seconds)
        return RunStarted(run_id=name, sandbox=record.name, state="running")

    async def _begin(self, active: ActiveRun, connection: RunnerConnection) -> str:
        handle = await start_run(connection, active, self._limits, detached=True)
        try:
            return await connection.wait_for(handle.accepted)
        finally:
            connection.runs.pop(active.run, None)

    async def read(
        self,
        owner: str,
        name: str,
        *,
        cursor: int,
        wait: float,
        until: Literal["output", "end"] = "output",
        strip_ansi: bool = False,
        max_output: int | None = None,
    ) -> Answer[RunOutput]:
        """Return what a run has written since the cursor, and, once it has ended, its result with all of its output.

        It waits at most `wait` seconds, for output or `until` the end. What comes until the end is cut in the middle;
        otherwise the cursor goes no further than what is returned, at most `max_output` characters.
        Raises not_found, or sandbox_lost.
        """
        sandbox, run = split_run_id(name)
        most = max_output or self._limits.output_chars
        to_end = until == "end"
        cap, limit = (self._limits.output_cap, protocol.FILE_PART) if to_end else (READ_LIMIT, min(most, READ_LIMIT))
        deadline = asyncio.get_running_loop().time() + wait

        async def look(record: SandboxRecord, connection: RunnerConnection) -> Answer[RunOutput]:
            masker = (await self._sandboxes.secrets.of(record)).masker
            tail = TailReader(connection, run, cursor, Recorder(cap, strip_ansi=strip_ansi, masker=masker))
            await tail.read(limit, deadline, to_end=to_end)
            output = RunOutput(
                run_id=name, sandbox=sandbox, state=tail.state, cursor=tail.cursor, dropped_bytes=tail.dropped
            )
            if tail.ended is None:
                return build_reading(output, tail.recorder, None, most)
            self._sandboxes.meter.ongoing.background_ended(name, *used_by(tail.ended))
            whole = tail.recorder
            if cursor:
                whole = Recorder(self._limits.output_cap, strip_ansi=strip_ansi, masker=masker)
                await TailReader(connection, run, 0, whole).read(protocol.FILE_PART, 0, to_end=True)
            await _get_displays(connection, run, whole, tail.ended)
            hint = await find_hint(self._sandboxes, record, whole, tail.ended)
            end = RunEnd(sandbox=record.name, run=run, recorder=whole, ended=tail.ended, hints=(hint,))
            return build_reading(output, tail.recorder, end, most)

        return await self._about(owner, name, look)

    async def stop(self, owner: str, name: str) -> Answer[RunOutput]:
        """End a run and return how it ended, with its output. Raises not_found, or sandbox_lost."""

        async def end(_: SandboxRecord, connection: RunnerConnection) -> None:
            await connection.cancel(split_run_id(name)[1])
            await connection.ask("ping")  # answered after it

        await self._about(owner, name, end)
        return await self.read(owner, name, cursor=0, wait=STOP_WAIT, until="end")

    async def write(self, owner: str, name: str, data: bytes, *, last: bool) -> None:
        """Send input to a run that was begun with `open_stdin`, and its end after the `last`; others ignore it.

        Raises not_found: it is not running. sandbox_lost: whether it came is not known.
        """
        run = split_run_id(name)[1]
        account, meter = account_of(current_caller()), self._sandboxes.meter
        meter.check_bytes(account, len(data))

        async def send(record: SandboxRecord, connection: RunnerConnection) -> None:
            listing = checked(Listing, await connection.ask("list"))
            if not any(each.run == run and each.state == "live" for each in listing.runs):
                raise no_such_run()
            for start in range(0, max(1, len(data)), protocol.FILE_PART):
                part = data[start : start + protocol.FILE_PART]
                await connection.send_input(run, part, None, last=last and start + len(part) == len(data))
            meter.move(account, record.name, into=len(data))

        await self._about(owner, name, send, again=False)

    async def list_runs(self, owner: str, *, sandbox: str | None) -> RunList:
        """List the runs of a sandbox, oldest first."""
        name, listing = await self._list(owner, sandbox)
        return RunList(sandbox=name, runs=run_infos(name, listing))

    async def list_contexts(self, owner: str, *, sandbox: str | None) -> ContextList:
        """List the contexts of a sandbox."""
        name, listing = await self._list(owner, sandbox)
        contexts = [
            ContextInfo(**each.model_dump(exclude={"started"}), started_at=_rfc3339(each.started))
            for each in listing.contexts
        ]
        return ContextList(sandbox=name, contexts=contexts)

    async def restart_context(self, owner: str, context: str, *, sandbox: str | None) -> ContextRestarted:
        """End a context's process, and with it its variables. Raises not_found."""
        record = await self._sandboxes.resolve(owner, sandbox, make=False)
        fields = {"context": context}
        try:
            await ask_runner(self._sandboxes, record, lambda connection: connection.ask("restart", fields), again=False)
        except SandpodError as error:
            if error.code == ErrorCode.NOT_FOUND:
                error.cause = forgotten(record)
            raise
        return ContextRestarted(sandbox=record.name, context=context)

    async def _list(self, owner: str, sandbox: str | None) -> tuple[str, Listing]:
        record = await self._sandboxes.resolve(owner, sandbox, make=False)
        frame = await ask_runner(self._sandboxes, record, lambda connection: connection.ask("list"), again=True)
        return record.name, checked(Listing, frame)

    async def _about(
        self,
        owner: str,
        name: str,
        ask: Callable[[SandboxRecord, RunnerConnection], Awaitable[_T]],
        *,
        again: bool = True,
    ) -> _T:
        """Ask about a run, `again` where the stream is lost; one of a sandbox that is not there is not there either."""
        sandbox, _ = split_run_id(name)
        record: SandboxRecord | None = None
        try:
            record = found = await self._sandboxes.resolve(owner, sandbox)
            return await ask_runner(self._sandboxes, record, lambda connection: ask(found, connection), again=again)
        except SandpodError as error:
            if error.code in {ErrorCode.SESSION_NOT_FOUND, ErrorCode.NOT_FOUND}:
                raise no_such_run(forgotten(record)) from error
            raise


async def _get_displays(connection: RunnerConnection, run: str, recorder: Recorder, ended: Ended) -> None:
    """Record what a run showed, which its sandbox keeps as long as the run."""
    if ended.displays == 0:
        return
    handle = None
    try:
        async with asyncio.timeout(DISPLAYS_WAIT):
            while (other := connection.runs.get(run)) is not None:
                await asyncio.wait({other.ended})
            received = {"stdout": ended.stdout_bytes, "stderr": ended.stderr_bytes}
            handle = await connection.follow_run(run, received, recorder)
            await asyncio.shield(handle.ended)
    except (TimeoutError, SandpodError):
        # Forgotten meanwhile, or another gateway asked at the same time: it is counted as what did not come.
        if handle is not None and connection.runs.get(run) is handle:
            del connection.runs[run]
    came = len(recorder.displays) + len(recorder.value) + recorder.dropped
    recorder.dropped += max(0, ended.displays - came)


def run_infos(sandbox: str, listing: Listing) -> list[RunInfo]:
    """Return the runs of a sandbox as callers see them, without the gateway's own."""
    return [
        RunInfo(
            **run.model_dump(include={"language", "context", "outcome"}),
            run_id=run_id(sandbox, run.run),
            state="running" if run.state == "live" else "ended",
            background=run.detached,
            started_at=_rfc3339(run.started),
        )
        for run in listing.runs
        if not is_own(run.run)
    ]


def used_by(ended: Ended) -> tuple[float, int]:
    """Return the seconds of processor time and the bytes of output of a run that has ended."""
    return ended.cpu_ms / 1e3, ended.stdout_bytes + ended.stderr_bytes


def _rfc3339(time: float) -> str:
    """Return a time to the millisecond, all of one length: runs are ordered by it, and many begin in one second."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
