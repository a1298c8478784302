"""One run from call to result: limits, start, stream, cancel, end, metrics.

Called by the MCP tools. It decides nothing about whose sandbox it is (`sandboxes.py`) and nothing about how a program
is started or stopped (the runner); it makes sure that every run ends here, whatever happens there.
"""

import asyncio
import json
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio

from sandpod_api.results import ErrorCode, Language, Outcome, RunResult
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.connection import ConnectionLostError, RunHandle, RunnerConnection
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.hints import hint_for
from sandpod_gateway.limits import RunLimits, check_run
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.output import Capture
from sandpod_gateway.runner_messages import Ended
from sandpod_gateway.sandboxes import Sandboxes
from sandpod_gateway.streaming import OutputStream, Send
from sandpod_runner import protocol

logger = logging.getLogger(__name__)

OVERTIME: Final = 10.0  # seconds after its timeout in which the runner must have told a run's end
CANCEL_WAIT: Final = 5.0  # seconds that a cancelled call waits for the program's end
FRESH_MARGIN: Final = 120  # seconds that a sandbox for one run may outlive it when nobody is left to delete it
MAX_RESULT: Final = 900 * 1024  # bytes of a result as it is sent; clients refuse one event of 1 MiB


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """What to run. Times in seconds; `cwd` is relative to the workspace."""

    language: Language
    code: str
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "."
    stdin: str | None = None
    timeout: float | None = None


@dataclass(slots=True)
class _Running:
    """A run's output and state while it goes on."""

    record: SandboxRecord
    request: RunRequest
    run_id: str
    cap: int
    stream: OutputStream | None
    started: float = field(default_factory=time.perf_counter)
    stdout: Capture = field(init=False)
    stderr: Capture = field(init=False)

    def __post_init__(self) -> None:
        self.stdout, self.stderr = Capture(self.cap), Capture(self.cap)

    def sink(self, stream: str, data: bytes) -> None:
        """Take output; called by the connection's reader."""
        (self.stdout if stream == "stdout" else self.stderr).feed(data)
        if self.stream is not None:
            self.stream.feed(stream, data)


class Runs:
    """Runs code in callers' sandboxes."""

    def __init__(self, sandboxes: Sandboxes, limits: RunLimits, metrics: Metrics) -> None:
        self._sandboxes = sandboxes
        self._limits = limits
        self._metrics = metrics

    async def run(
        self,
        owner: str,
        request: RunRequest,
        *,
        sandbox: str | None = None,
        fresh: bool = False,
        send: Send | None = None,
    ) -> RunResult:
        """Run a program and return what it did.

        Args:
            owner: The caller.
            request: What to run.
            sandbox: A handle, or None for the caller's default sandbox.
            fresh: Use a sandbox that is thrown away afterwards.
            send: Where output goes while the program runs, if the caller wants that.

        Raises:
            SandpodError: It was refused before it began.
        """
        check_run(request, self._limits)
        if fresh and sandbox is not None:
            raise SandpodError(
                ErrorCode.INVALID_ARGUMENT,
                "fresh and sandbox exclude each other.",
                next_step="Leave one of them out.",
            )
        if not fresh:
            return await self._run_in(await self._sandboxes.resolve(owner, sandbox), request, send)
        async with self._fresh(owner, request) as record:
            return await self._run_in(record, request, send)

    @asynccontextmanager
    async def _fresh(self, owner: str, request: RunRequest) -> AsyncIterator[SandboxRecord]:
        """Make a sandbox for one run. Should this gateway die meanwhile, its short lifetime ends it."""
        ttl = math.ceil(self._limits.timeout(request.timeout)) + FRESH_MARGIN
        claim = ClaimRequest(owner=owner, ttl=ttl, idle_timeout=FRESH_MARGIN)
        record = await self._sandboxes.create(claim)
        try:
            yield record
        finally:
            await self._sandboxes.discard(record)

    async def _run_in(self, record: SandboxRecord, request: RunRequest, send: Send | None) -> RunResult:
        stream = OutputStream(send) if send is not None else None
        running = _Running(record, request, "run-" + secrets.token_hex(8), self._limits.output_cap, stream)
        pump = asyncio.create_task(stream.pump()) if stream is not None else None
        keeper = asyncio.create_task(self._sandboxes.keep_alive(record.name))
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
        return self._result(running, ended)

    async def _until_end(self, running: _Running) -> Ended:
        """Start the program and wait for its end; a lost sandbox is an end too."""
        timeout = self._limits.timeout(running.request.timeout)
        try:
            async with self._sandboxes.connection(running.record) as connection:
                try:
                    handle = await self._start(connection, running, timeout)
                    async with asyncio.timeout(timeout + OVERTIME):
                        return self._seen(running, await asyncio.shield(handle.ended))
                except TimeoutError:
                    # A runner that is this late does not listen any more: the sandbox can't be used.
                    await connection.close()
                    raise ConnectionLostError from None
                except asyncio.CancelledError:
                    await self._cancel(connection, running.run_id)
                    self._count(running, Outcome.CANCELLED)
                    raise
        except ConnectionLostError:
            return self._lost(running)

    async def _start(self, connection: RunnerConnection, running: _Running, seconds: float) -> RunHandle:
        request = running.request
        if request.language not in connection.hello.languages:
            raise SandpodError(
                ErrorCode.UNSUPPORTED_LANGUAGE,
                f"This sandbox's image has no {request.language}.",
                next_step=f"It has: {', '.join(sorted(connection.hello.languages)) or 'none'}.",
            )
        header = {
            "run": running.run_id,
            "language": str(request.language),
            "args": request.args,
            "env": request.env,
            "cwd": request.cwd,
            "stdin": request.stdin is not None,
            "timeout": seconds,
            "output_limit": self._limits.output_limit,
            "detached": False,
        }
        handle = await connection.start_run(header, request.code.encode(), running.sink)
        if request.stdin is not None:
            await connection.send_stdin(running.run_id, request.stdin.encode())
        return handle

    async def _cancel(self, connection: RunnerConnection, run_id: str) -> None:
        """End the program for a caller that has gone, and see it end."""
        with anyio.CancelScope(shield=True):
            if not await connection.stop_run(run_id, wait=CANCEL_WAIT):
                logger.warning("a cancelled run did not end in time; its sandbox's stream is closed")
                await connection.close()

    def _seen(self, running: _Running, ended: Ended) -> Ended:
        """Return the end as the caller sees it: a cancel that nobody here asked for is a sandbox being stopped."""
        if ended.outcome != Outcome.CANCELLED or self._sandboxes.is_closing(running.record.name):
            return ended
        detail = "The sandbox was stopped while the program ran, and the program with it."
        return ended.model_copy(update={"outcome": Outcome.SANDBOX_LOST, "detail": detail})

    def _lost(self, running: _Running) -> Ended:
        if self._sandboxes.is_closing(running.record.name):
            return Ended(outcome=Outcome.CANCELLED, detail="The sandbox was closed while the program ran.")
        detail = "The sandbox went away while the program ran; whether the program ended is not known."
        return Ended(outcome=Outcome.SANDBOX_LOST, detail=detail)

    def _count(self, running: _Running, outcome: str) -> None:
        language = str(running.request.language)
        self._metrics.runs.labels(language, outcome).inc()
        self._metrics.run_seconds.labels(language).observe(time.perf_counter() - running.started)
        self._metrics.output_bytes.labels("stdout").inc(running.stdout.total)
        self._metrics.output_bytes.labels("stderr").inc(running.stderr.total)

    def _result(self, running: _Running, ended: Ended) -> RunResult:
        self._count(running, ended.outcome)
        dropped = running.stream.dropped if running.stream is not None else 0
        self._metrics.progress_dropped.inc(dropped)
        cap = self._limits.output_cap
        while True:
            out, err = running.stdout.read(cap), running.stderr.read(cap)
            result = RunResult(
                sandbox=running.record.name,
                run_id=running.run_id,
                outcome=ended.outcome,
                exit_code=ended.exit_code,
                signal=ended.signal,
                stdout=out.text,
                stdout_bytes=max(out.total, ended.stdout_bytes),
                stdout_truncated=out.truncated,
                stderr=err.text,
                stderr_bytes=max(err.total, ended.stderr_bytes),
                stderr_truncated=err.truncated,
                duration_ms=round(ended.duration_ms, 3) or round((time.perf_counter() - running.started) * 1e3, 3),
                cpu_ms=round(ended.cpu_ms, 3),
                max_rss_bytes=ended.max_rss_bytes,
                progress_dropped_bytes=dropped,
                hint=hint_for(ended.outcome, ended.detail, err.text, running.request.language),
            )
            if cap < protocol.OUT_PIECE // 8 or _sent_size(result) <= MAX_RESULT:
                return result
            cap //= 2


def _sent_size(result: RunResult) -> int:
    """Bytes of a result on the wire: once as JSON, once more as JSON inside a JSON string."""
    text = result.model_dump_json()
    if len(text) * 14 < MAX_RESULT:  # a control character grows to 6 and then 7 more bytes
        return 0
    return len(text.encode()) + len(json.dumps(text, ensure_ascii=False).encode())
