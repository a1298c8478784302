"""Background runs and contexts: begun, read on, stopped and listed by calls that do not wait for a program.

Called by the MCP tools. Nothing is kept here: a run's name says in which sandbox it is, and its output and end are
kept by the runner there. So any gateway can go on where another one left off.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeVar

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import ContextList, ContextRestarted, Outcome, RunList, RunOutput, RunStarted
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import RunLimits
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.messages import Ended, checked
from sandpod_gateway.runner.run_ids import new_run, no_such_run, run_id, split_run_id
from sandpod_gateway.runs.hints import hint_for
from sandpod_gateway.runs.places import place_of
from sandpod_gateway.runs.recorder import Running
from sandpod_gateway.runs.reports import Listing, Tail, run_output
from sandpod_gateway.runs.request import RunRequest, check_run
from sandpod_gateway.runs.result import Reading, Showing
from sandpod_gateway.runs.service import start_run
from sandpod_gateway.sandboxes.availability import forgotten
from sandpod_gateway.sandboxes.requests import ask_runner
from sandpod_gateway.sandboxes.service import Sandboxes

_T = TypeVar("_T")

READ_LIMIT: Final = 48 * 1024
"""Most bytes of output in one answer: as JSON, counted twice, they stay below what clients take."""
HALF_WAIT: Final = 0.2  # seconds until output is asked for again that could not be told yet
WAIT_ONCE: Final = 30.0  # seconds that the runner waits for more output in one request
DISPLAYS_WAIT: Final = 10.0  # seconds that they may take from the sandbox
STOP_WAIT: Final = 5.0  # seconds that stop_run waits for the end
STOP_READS: Final = 400  # answers that stop_run reads: a runner keeps 17 MiB of a run's output


class BackgroundRuns:
    """Background runs and contexts of callers' sandboxes."""

    def __init__(self, sandboxes: Sandboxes, limits: RunLimits) -> None:
        self._sandboxes = sandboxes
        self._limits = limits

    async def start(self, owner: str, request: RunRequest, *, sandbox: str | None) -> RunStarted:
        """Begin a run that goes on whatever becomes of this call, this connection and this gateway.

        Raises:
            SandpodError: It was refused, or whether it was begun is not known (sandbox_lost).
        """
        check_run(request, self._limits)
        record = await self._sandboxes.resolve(owner, sandbox)
        seconds = self._limits.timeout(request.timeout)
        running = Running(record, request, new_run(), self._limits.output_cap)
        await self._sandboxes.keep_busy(record.name, seconds)

        async def begin(connection: RunnerConnection) -> str:
            handle = await start_run(connection, running, self._limits, detached=True)
            run = await connection.wait_for(handle.accepted)
            connection.forget_run(running.run)
            return run

        run = await ask_runner(self._sandboxes, record, begin, again=True)
        return RunStarted(run_id=run_id(record.name, run), sandbox=record.name, state="running")

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
    ) -> Reading:
        """Return what a run has written since the cursor; wait for more, or for its end, if there is nothing yet.

        With its result comes what it showed.

        Args:
            owner: The caller.
            name: The run, as `start` named it.
            cursor: Where the last reading ended.
            wait: Most seconds to wait.
            until: What to wait for.
            max_output: Most characters to return, or None for the server's default.
            strip_ansi: Whether terminal control sequences are taken out.

        Raises:
            SandpodError: not_found, or sandbox_lost.
        """
        _, run = split_run_id(name)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait

        async def look(record: SandboxRecord, connection: RunnerConnection) -> Reading:
            left = max(0.0, deadline - loop.time())
            fields = {"run": run, "cursor": cursor, "wait": min(left, WAIT_ONCE), "limit": READ_LIMIT}
            reply = await connection.ask("tail", fields)
            output = run_output(reply, name, READ_LIMIT, strip_ansi=strip_ansi)
            ended = checked(Tail, reply).end
            if output.result is None or ended is None:
                return Reading(output)
            output.result.hint = await self._hint(record, connection, run, ended)
            return await _with_displays(connection, run, ended, output)

        while True:
            reading = await self._about(owner, name, look)
            output = reading.result
            if output.cursor != cursor or output.state == "ended" or loop.time() >= deadline:
                return reading
            # Half a character or half a control sequence, after which the runner waits for nothing more; or a runner
            # that does not wait as it was asked to.
            await asyncio.sleep(min(HALF_WAIT, max(0.0, deadline - loop.time())))

    async def stop(self, owner: str, name: str) -> Reading:
        """End a run and return how it ended, with the end of its output.

        Raises:
            SandpodError: not_found, or sandbox_lost.
        """
        _, run = split_run_id(name)

        async def end(_record: SandboxRecord, connection: RunnerConnection) -> None:
            await connection.cancel(run)
            await connection.ask("ping")  # answered after it

        await self._about(owner, name, end)
        loop = asyncio.get_running_loop()
        deadline, cursor = loop.time() + STOP_WAIT, 0
        for _ in range(STOP_READS):
            reading = await self.read(owner, name, cursor=cursor, wait=max(0.0, deadline - loop.time()))
            if reading.result.result is not None or reading.result.cursor <= cursor or loop.time() >= deadline:
                break
            cursor = reading.result.cursor
        return reading

    async def list_runs(self, owner: str, *, sandbox: str | None) -> RunList:
        """List the runs of a sandbox, oldest first."""
        name, listing = await self._list(owner, sandbox)
        return RunList(sandbox=name, runs=listing.run_infos(name))

    async def list_contexts(self, owner: str, *, sandbox: str | None) -> ContextList:
        """List the contexts of a sandbox."""
        name, listing = await self._list(owner, sandbox)
        return ContextList(sandbox=name, contexts=listing.context_infos())

    async def restart_context(self, owner: str, context: str, *, sandbox: str | None) -> ContextRestarted:
        """End a context's process, and with it its variables.

        Raises:
            SandpodError: not_found.
        """
        record = await self._sandboxes.resolve(owner, sandbox, make=False)
        fields = {"context": context}
        try:
            await ask_runner(self._sandboxes, record, lambda connection: connection.ask("restart", fields), again=False)
        except SandpodError as error:
            if error.code != ErrorCode.NOT_FOUND or record.resumed is None:
                raise
            raise SandpodError(error.code, error.message, cause=forgotten(record), next_step=error.next_step) from error
        return ContextRestarted(sandbox=record.name, context=context)

    async def _list(self, owner: str, sandbox: str | None) -> tuple[str, Listing]:
        record = await self._sandboxes.resolve(owner, sandbox, make=False)
        frame = await ask_runner(self._sandboxes, record, lambda connection: connection.ask("list"), again=True)
        return record.name, checked(Listing, frame)

    async def _hint(self, record: SandboxRecord, connection: RunnerConnection, run: str, ended: Ended) -> str | None:
        """Return the hint for a run that has ended, by all of its output that is kept, whatever was read before."""
        stderr = ""
        if ended.outcome == Outcome.ERROR:
            start = max(0, ended.stdout_bytes + ended.stderr_bytes - READ_LIMIT)
            reply = await connection.ask("tail", {"run": run, "cursor": start, "wait": 0, "limit": READ_LIMIT})
            pieces = checked(Tail, reply).split(reply.payload)
            stderr = b"".join(data for stream, data in pieces if stream == "stderr").decode("utf-8", "replace")
        place = await place_of(self._sandboxes, record, stderr)
        return hint_for(ended.outcome, ended.detail, stderr, place, ended.displays_dropped)

    async def _about(
        self, owner: str, name: str, ask: Callable[[SandboxRecord, RunnerConnection], Awaitable[_T]]
    ) -> _T:
        """Ask about a run, again where the stream is lost; one of a sandbox that is not there is not there either."""
        sandbox, _ = split_run_id(name)
        record: SandboxRecord | None = None
        try:
            record = found = await self._sandboxes.resolve(owner, sandbox)
            return await ask_runner(self._sandboxes, record, lambda connection: ask(found, connection), again=True)
        except SandpodError as error:
            if error.code in {ErrorCode.SESSION_NOT_FOUND, ErrorCode.NOT_FOUND}:
                raise no_such_run(forgotten(record)) from error
            raise


async def _with_displays(connection: RunnerConnection, run: str, ended: Ended, output: RunOutput) -> Reading:
    """Return what was read of a run that has ended, with what it showed, which its sandbox keeps as long as the run."""
    if ended.displays == 0:
        return Reading(output)
    showing = Showing()
    handle = None
    try:
        async with asyncio.timeout(DISPLAYS_WAIT):
            while (other := connection.waits_for(run)) is not None:
                await asyncio.wait({other.ended})
            received = {"stdout": ended.stdout_bytes, "stderr": ended.stderr_bytes}
            handle = await connection.follow_run(run, received, showing)
            await asyncio.shield(handle.ended)
    except (TimeoutError, SandpodError):
        # Forgotten meanwhile, or another gateway asked at the same time: it is counted as what did not come.
        if handle is not None and connection.waits_for(run) is handle:
            connection.forget_run(run)
    showing.dropped += max(0, ended.displays - len(showing.displays) - len(showing.value) - showing.dropped)
    return showing.add_to(output)
