"""A runner's answers about runs and contexts, checked, and what callers are told of them. Pure.

Called by `background.py`. The runner is untrusted: counts, texts and lists are bounded here.
"""

from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandpod_api.base import rfc3339
from sandpod_gateway.api.run_results import ContextInfo, Outcome, RunInfo, RunOutput, RunResult
from sandpod_gateway.runner.messages import Ended, checked
from sandpod_gateway.runner.run_ids import run_id, split_run_id
from sandpod_gateway.runs import ansi
from sandpod_runner.protocol.frames import Frame

MAX_PIECES: Final = 100_000
MAX_LISTED: Final = 1000

_Count = Annotated[int, Field(ge=0, le=2**62)]
_Name = Annotated[str, Field(min_length=1, max_length=128)]
_Time = Annotated[float, Field(ge=0, le=253_402_300_000)]  # within the year 9999, the last that a datetime has


class Tail(BaseModel):
    """The reply to `tail`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    state: Literal["live", "ended"]
    cursor: _Count
    dropped: _Count = 0
    pieces: Annotated[list[tuple[Literal["stdout", "stderr"], _Count]], Field(max_length=MAX_PIECES)]
    end: Ended | None = None

    def split(self, payload: bytes) -> list[tuple[str, bytes]]:
        """Return the pieces of output that the payload holds, each with its stream."""
        parts: list[tuple[str, bytes]] = []
        start = 0
        for stream, size in self.pieces:
            parts.append((stream, payload[start : start + size]))
            start += size
        return parts


class _Run(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    run: _Name
    language: Annotated[str, Field(max_length=32)]
    state: Literal["live", "ended"]
    detached: bool = False
    context: _Name | None = None
    started: _Time
    outcome: Outcome | None = None


class _Context(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    name: _Name
    language: Annotated[str, Field(max_length=32)]
    state: Literal["idle", "busy", "lost"]
    started: _Time


class Listing(BaseModel):
    """The reply to `list`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    runs: Annotated[list[_Run], Field(max_length=MAX_LISTED)] = Field(default_factory=list)
    contexts: Annotated[list[_Context], Field(max_length=MAX_LISTED)] = Field(default_factory=list)

    def run_infos(self, sandbox: str) -> list[RunInfo]:
        """Return the runs as their caller sees them."""
        return [
            RunInfo(
                run_id=run_id(sandbox, run.run),
                language=run.language,
                state="running" if run.state == "live" else "ended",
                background=run.detached,
                context=run.context,
                started_at=_rfc3339(run.started),
                outcome=run.outcome,
            )
            for run in self.runs
        ]

    def context_infos(self) -> list[ContextInfo]:
        """Return the contexts as their caller sees them."""
        return [
            ContextInfo(name=c.name, language=c.language, state=c.state, started_at=_rfc3339(c.started))
            for c in self.contexts
        ]


def run_output(frame: Frame, name: str, limit: int, *, strip_ansi: bool = False) -> RunOutput:
    """Return what a reply to `tail` tells the caller, without a hint.

    Args:
        frame: The reply.
        name: The run, as its caller knows it.
        limit: Most bytes that were asked for: a reply with fewer holds all there is.
        strip_ansi: Whether terminal control sequences are taken out.

    Raises:
        SandpodError: backend_error.
    """
    tail = checked(Tail, frame)
    sandbox, _ = split_run_id(name)
    parts: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    for stream, data in tail.split(frame.payload):
        parts[stream] += data
    ended = tail.end if tail.state == "ended" and len(frame.payload) < limit else None
    held_back = 0
    if ended is None and tail.pieces:
        last = parts[tail.pieces[-1][0]]
        held_back = _unfinished(last) or (ansi.unfinished(last) if strip_ansi else 0)
        del last[len(last) - held_back :]
    told = {stream: ansi.strip(bytes(data)) if strip_ansi else bytes(data) for stream, data in parts.items()}
    text = {stream: data.decode("utf-8", "replace") for stream, data in told.items()}
    result = None
    if ended is not None:
        result = RunResult(
            sandbox=sandbox,
            run_id=name,
            outcome=ended.outcome,
            exit_code=ended.exit_code,
            signal=ended.signal,
            **text,
            stdout_bytes=ended.stdout_bytes,
            stdout_truncated=len(parts["stdout"]) < ended.stdout_bytes,
            stderr_bytes=ended.stderr_bytes,
            stderr_truncated=len(parts["stderr"]) < ended.stderr_bytes,
            displays_dropped=ended.displays_dropped,
            context=ended.context,
            context_state=ended.context_state,
            artifacts=[entry.artifact() for entry in ended.artifacts],
            artifacts_omitted=ended.artifacts_more,
            duration_ms=ended.duration_ms,
            cpu_ms=ended.cpu_ms,
            max_rss_bytes=ended.max_rss_bytes,
        )
    return RunOutput(
        run_id=name,
        sandbox=sandbox,
        state="running" if tail.state == "live" else "ended",
        **text,
        cursor=tail.cursor - held_back,
        dropped_bytes=tail.dropped,
        result=result,
    )


def _unfinished(data: bytearray) -> int:
    """Return how many bytes at the end are the beginning of a UTF-8 character that is not whole yet."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:  # noqa: PLR2004  # ASCII: nothing is open
            return 0
        if byte >= 0xC0:  # noqa: PLR2004  # the first byte of a character, which says how long it is
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4  # noqa: PLR2004  # by UTF-8's own table
            return back if length > back else 0
    return 0


def _rfc3339(time: float) -> str:
    return rfc3339(datetime.fromtimestamp(time, UTC))
