"""One run from call to result: limits, start, stream, cancel, end, metrics.

Called by the MCP tools. It decides nothing about whose sandbox it is (`sandboxes.py`) and nothing about how a program
is started or stopped (the runner); it makes sure that every run ends here, whatever happens there.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Outcome
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import RunLimits
from sandpod_gateway.metrics import Metrics, language_label
from sandpod_gateway.packages.installer import Installer
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.demux import BrokenProtocolError, ConnectionLostError, RunHandle, StartedBeforeError
from sandpod_gateway.runner.messages import Ended, checked
from sandpod_gateway.runner.run_ids import new_run
from sandpod_gateway.runs.places import place_of
from sandpod_gateway.runs.progress import OutputStream, Send
from sandpod_gateway.runs.recorder import RunAnswer, Running
from sandpod_gateway.runs.reports import Tail
from sandpod_gateway.runs.request import FreshSandbox, RunRequest, check_run
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_runner.protocol import messages as protocol

logger = logging.getLogger(__name__)

OVERTIME: Final = 10.0  # seconds after its timeout in which the runner must have told a run's end
ATTEMPTS: Final = 5  # streams that one run may use: each may be lost with the API server or the network to it
REOPEN_PAUSE: Final = 1.0  # seconds; the runner keeps a run without a stream for 10 of them
TAIL_PAUSE: Final = 0.2  # seconds until a runner that told nothing new is asked again, however soon it answered
TAIL_WAIT: Final = 30.0  # seconds that the runner waits for more output in one request
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
        """Refuse what no sandbox should be bothered with.

        Raises:
            SandpodError: What `limits.check_run` says.
        """
        check_run(request, self._limits)

    async def run(
        self,
        owner: str,
        request: RunRequest,
        *,
        sandbox: str | None = None,
        fresh: FreshSandbox | None = None,
        send: Send | None = None,
    ) -> RunAnswer:
        """Run a program and return what it did.

        Args:
            owner: The caller.
            request: What to run.
            sandbox: A handle, or None for the caller's default sandbox.
            fresh: Use such a sandbox in its place.
            send: Where output goes while the program runs, if the caller wants that.

        Raises:
            SandpodError: It was refused before it began.
        """
        self.check(request)
        if request.packages:
            self._installer.check(request.packages, request.language)
        if fresh is not None and (sandbox is not None or request.context is not None or request.key is not None):
            raise SandpodError(
                ErrorCode.INVALID_ARGUMENT,
                "fresh goes with none of sandbox, context and idempotency_key: nothing of its sandbox stays.",
                next_step="Leave one of them out.",
            )
        if fresh is None:
            return await self._run_in(await self._sandboxes.resolve(owner, sandbox), request, send)
        async with self._fresh(owner, request, fresh) as record:
            return await self._run_in(record, request, send, fresh=True)

    @asynccontextmanager
    async def _fresh(self, owner: str, request: RunRequest, fresh: FreshSandbox) -> AsyncIterator[SandboxRecord]:
        """Make a sandbox for one run. Should this gateway die meanwhile, its short lifetime ends it."""
        installing = math.ceil(self._installer.timeout) if request.packages else 0
        ttl = math.ceil(self._limits.timeout(request.timeout)) + installing + FRESH_MARGIN
        claim = ClaimRequest(
            owner=owner,
            template=fresh.template,
            ttl=ttl,
            idle_timeout=FRESH_MARGIN,
            cold_start=fresh.cold_start,
        )
        record = await self._sandboxes.create(claim)
        try:
            yield record
        finally:
            await self._sandboxes.discard(record)

    async def _run_in(
        self, record: SandboxRecord, request: RunRequest, send: Send | None, *, fresh: bool = False
    ) -> RunAnswer:
        if request.packages:
            await self._installer.require(record, request.packages, request.language)
        stream = OutputStream(send) if send is not None else None
        most = request.max_output or self._limits.output_chars
        running = Running(record, request, new_run(), self._limits.output_cap, stream, most)
        running.note = self._sandboxes.lost_note(record, request.context)
        pump = asyncio.create_task(stream.pump()) if stream is not None else None
        keeper = asyncio.create_task(self._sandboxes.keep_alive(record))
        self._metrics.active_runs.inc()
        try:
            ended = await self._until_end(running)
            if stream is not None and pump is not None:
                await stream.finish(pump)
        finally:
            self._metrics.active_runs.dec()
            keeper.cancel()
            if pump is not None:
                pump.cancel()
        self._count(running, ended.outcome)
        if stream is not None:
            self._metrics.progress_dropped.inc(stream.dropped)
        stderr = running.stderr.read(self._limits.output_cap).text
        running.place = await place_of(self._sandboxes, record, stderr, fresh=fresh)
        return running.answer(ended)

    async def _until_end(self, running: Running) -> Ended:
        """Start the program and wait for its end, on another stream where one is lost; a lost sandbox is an end too."""
        deadline = time.monotonic() + self._limits.timeout(running.request.timeout) + OVERTIME
        try:
            for attempt in range(ATTEMPTS):
                try:
                    return await self._attend(running, deadline)
                except BrokenProtocolError as error:
                    return self._lost(running, f"The sandbox's stream was closed: {error}.")
                except ConnectionLostError:
                    if self._is_closing(running) or time.monotonic() > deadline:
                        break
                except SandpodError as error:
                    if attempt == 0:
                        raise
                    if error.code != ErrorCode.BACKEND_UNAVAILABLE:
                        break  # the sandbox is gone, or its runner does not know the run any more
                    await asyncio.sleep(REOPEN_PAUSE)
        except asyncio.CancelledError:
            self._count(running, Outcome.CANCELLED)
            raise
        return self._lost(running)

    async def _attend(self, running: Running, deadline: float) -> Ended:
        """Start the program unless it was started, and wait for its end over one stream.

        Raises:
            ConnectionLostError: The stream was lost, or the runner says nothing any more.
        """
        async with self._sandboxes.connection(running.record) as connection:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    if running.theirs:
                        return await self._read_earlier(connection, running)
                    handle = await start_run(connection, running, self._limits)
                    return await self._ended(connection, running, handle)
            except TimeoutError:
                # A runner that is this late does not listen any more: the sandbox can't be used.
                await connection.close()
                raise ConnectionLostError from None
            except asyncio.CancelledError:
                await self._cancel(connection, running.run)
                raise

    async def _ended(self, connection: RunnerConnection, running: Running, handle: RunHandle) -> Ended:
        try:
            return self._seen(running, await connection.wait_for(handle.ended))
        except StartedBeforeError as before:
            if before.run != running.run:
                running.run, running.theirs = before.run, True
                return await self._read_earlier(connection, running)
        # It was started over a stream that is lost.
        handle = await connection.follow_run(running.run, running.received, running, acks=True)
        return self._seen(running, await connection.wait_for(handle.ended))

    async def _read_earlier(self, connection: RunnerConnection, running: Running) -> Ended:
        """Read all that another call's run with the same key wrote, and wait for its end; it stays that call's."""
        while True:
            fields = {"run": running.run, "cursor": running.cursor, "wait": TAIL_WAIT, "limit": protocol.FILE_PART}
            frame = await connection.ask("tail", fields)
            tail = checked(Tail, frame)
            for stream, data in tail.split(frame.payload):
                running.output(stream, running.received[stream], data)
            if tail.end is not None and not frame.payload:
                return tail.end
            if not frame.payload:
                await asyncio.sleep(TAIL_PAUSE)
            running.cursor = tail.cursor

    async def _cancel(self, connection: RunnerConnection, run_id: str) -> None:
        """End the program for a caller that has gone, and see it end."""
        with anyio.CancelScope(shield=True):
            if not await connection.stop_run(run_id, wait=CANCEL_WAIT):
                logger.warning("a cancelled run did not end in time; its sandbox's stream is closed")
                await connection.close()

    def _seen(self, running: Running, ended: Ended) -> Ended:
        """Return the end as the caller sees it: a sandbox that this gateway is closing is not lost."""
        return self._lost(running) if ended.outcome == Outcome.SANDBOX_LOST and self._is_closing(running) else ended

    def _is_closing(self, running: Running) -> bool:
        return self._sandboxes.is_closing(running.record.name)

    def _lost(self, running: Running, cause: str = "The sandbox went away while the program ran.") -> Ended:
        if self._is_closing(running):
            return Ended(outcome=Outcome.CANCELLED, detail="The sandbox was closed while the program ran.")
        return Ended(outcome=Outcome.SANDBOX_LOST, detail=f"{cause} Whether the program ended is not known.")

    def _count(self, running: Running, outcome: str) -> None:
        language = language_label(running.request.language)
        self._metrics.runs.labels(language, outcome).inc()
        self._metrics.run_seconds.labels(language).observe(time.perf_counter() - running.started)
        for stream, count in running.taken.items():
            self._metrics.output_bytes.labels(stream).inc(count)


async def start_run(
    connection: RunnerConnection, running: Running, limits: RunLimits, *, detached: bool = False
) -> RunHandle:
    """Start a program; one that was started already, over another stream, is not started again.

    Args:
        connection: The stream to its sandbox.
        running: The run.
        limits: What bounds it.
        detached: It goes on when nobody waits for it.

    Raises:
        SandpodError: unsupported_language.
        ConnectionLostError: The stream has ended.
    """
    request = running.request
    _require_language(connection, request)
    header = _run_header(running, limits) | {"detached": detached, "acks": not detached}
    handle = await connection.start_run(header, request.code.encode(), running)
    if request.stdin is not None:
        await connection.send_stdin(running.run, request.stdin.encode())
    return handle


def _require_language(connection: RunnerConnection, request: RunRequest) -> None:
    """Refuse a language that the sandbox does not have.

    Raises:
        SandpodError: unsupported_language.
    """
    languages = connection.hello.languages
    if request.language not in languages:
        raise SandpodError(
            ErrorCode.UNSUPPORTED_LANGUAGE,
            f"This sandbox has no {request.language}.",
            next_step=f"It has: {', '.join(sorted(languages)) or 'none'}. Use one of them, or create_sandbox with a "
            "template that has it: sandpod://capabilities lists the languages of each.",
        )


def _run_header(running: Running, limits: RunLimits) -> dict[str, Any]:
    """Return the fields of the `run` frame that starts a run."""
    request = running.request
    return {
        "run": running.run,
        "language": request.language,
        "args": request.args,
        "env": request.env,
        "cwd": request.cwd,
        "stdin": request.stdin is not None,
        "timeout": limits.timeout(request.timeout),
        "output_limit": limits.output_limit,
        **({"context": request.context} if request.context is not None else {}),
        **({"key": request.key} if request.key is not None else {}),
    }
