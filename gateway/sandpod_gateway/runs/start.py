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
    """A run that is going on."""

    record: SandboxRecord
    request: RunRequest
    recorder: Recorder
    run: str = field(default_factory=new_run)  # its name, as the runner knows it
    earlier: bool = False  # an earlier call with the same idempotency key started it, so it is read and not followed
    cursor: int = 0  # where reading such a run goes on
    begun: float = field(default_factory=time.perf_counter)

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.begun


async def start_run(
    connection: RunnerConnection, active: ActiveRun, limits: RunLimits, *, detached: bool = False
) -> RunHandle:
    """Start a program, `detached` from whoever waits for it; one that another connection has started is not again.

    Raises unsupported_language, or ConnectionLostError: the stream has ended.
    """
    request = active.request
    header: dict[str, Any] = {
        "run": active.run,
        "language": _language_in(connection, request),
        "args": request.args,
        "env": request.env,
        "cwd": request.cwd,
        "stdin": request.stdin is not None,
        "timeout": limits.timeout(request.timeout),
        "output_limit": limits.output_bytes,
        "detached": detached,
        "acks": not detached,
    }
    for name in ("context", "key"):
        if (value := getattr(request, name)) is not None:
            header[name] = value
    handle = await connection.start_run(header, request.code.encode(), active.recorder)
    if request.stdin is not None:
        await connection.send_stdin(active.run, request.stdin.encode())
    return handle


def _language_in(connection: RunnerConnection, request: RunRequest) -> str:
    """Return the language of a run as its sandbox calls it.

    Raises unsupported_language: the sandbox does not have it.
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
