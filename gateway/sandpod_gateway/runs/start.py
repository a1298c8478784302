"""Starts a program in a sandbox, for a caller that waits for it and for one that does not."""

import time
from dataclasses import dataclass, field
from typing import Any

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import RunLimits
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.demux import RunHandle
from sandpod_gateway.runner.run_ids import new_run
from sandpod_gateway.runs.recorder import Recorder
from sandpod_gateway.runs.request import OTHER_NAMES, RunRequest


@dataclass(kw_only=True, slots=True)
class ActiveRun:
    """A run that is going on.

    Attributes:
        record: The sandbox that it runs in.
        request: What was asked for.
        recorder: What came of it so far.
        run: Its name, as the runner knows it.
        earlier: It was started by an earlier call with the same idempotency key, so it is read and not followed.
        cursor: Where reading such a run goes on.
        begun: When this call's run began, on the performance counter, in seconds.
    """

    record: SandboxRecord
    request: RunRequest
    recorder: Recorder
    run: str = field(default_factory=new_run)
    earlier: bool = False
    cursor: int = 0
    begun: float = field(default_factory=time.perf_counter)

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.begun


async def start_run(
    connection: RunnerConnection, active: ActiveRun, limits: RunLimits, *, detached: bool = False
) -> RunHandle:
    """Start a program; one that was started already, over another connection, is not started again.

    Args:
        connection: The connection to its sandbox.
        active: The run.
        limits: What bounds it.
        detached: Whether it goes on when nobody waits for it.

    Raises:
        SandpodError: unsupported_language.
        ConnectionLostError: The stream has ended.
    """
    request = active.request
    header = _run_header(active, limits) | {
        "language": _language_in(connection, request),
        "detached": detached,
        "acks": not detached,
    }
    handle = await connection.start_run(header, request.code.encode(), active.recorder)
    if request.stdin is not None:
        await connection.send_stdin(active.run, request.stdin.encode())
    return handle


def _language_in(connection: RunnerConnection, request: RunRequest) -> str:
    """Return the language of a run as its sandbox calls it.

    Raises:
        SandpodError: unsupported_language: the sandbox does not have it.
    """
    languages = connection.hello.languages
    for name in (request.language, OTHER_NAMES.get(request.language)):
        if name in languages:
            return str(name)
    raise SandpodError(
        ErrorCode.UNSUPPORTED_LANGUAGE,
        f"This sandbox has no {request.language}.",
        next_step=f"It has: {', '.join(sorted(languages)) or 'none'}. Use one of them, or create_sandbox with a "
        "template that has it: sandpod://capabilities lists the languages of each.",
    )


def _run_header(active: ActiveRun, limits: RunLimits) -> dict[str, Any]:
    """Return the fields of the `run` frame that starts a run."""
    request = active.request
    return {
        "run": active.run,
        "args": request.args,
        "env": request.env,
        "cwd": request.cwd,
        "stdin": request.stdin is not None,
        "timeout": limits.timeout(request.timeout),
        "output_limit": limits.output_limit,
        **({"context": request.context} if request.context is not None else {}),
        **({"key": request.key} if request.key is not None else {}),
    }
