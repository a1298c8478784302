"""A runner's answers about runs and contexts, checked, and what callers see of them. Pure.

The runner is untrusted: counts, texts and lists are bounded here.
"""

from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandpod_api.base import rfc3339
from sandpod_gateway.api.run_results import ContextInfo, Outcome, RunInfo
from sandpod_gateway.runner.messages import Ended
from sandpod_gateway.runner.run_ids import run_id
from sandpod_gateway.runs import ansi

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

    def is_all(self, payload: bytes) -> bool:
        """Return whether the run has ended, and nothing comes after this reply."""
        return self.end is not None and (not payload or self.cursor >= self.end.stdout_bytes + self.end.stderr_bytes)

    def split(self, payload: bytes) -> list[tuple[str, bytes]]:
        """Return the pieces of output that the payload holds, each with its stream, which is another each time."""
        parts: list[tuple[str, bytes]] = []
        start = 0
        for stream, sizes in groupby(self.pieces, itemgetter(0)):
            size = sum(size for _, size in sizes)
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


def unfinished(data: bytes, *, strip_ansi: bool) -> int:
    """Return how many bytes at the end are the beginning of a character, or of a control sequence to remove."""
    return _unfinished_character(data) or (ansi.unfinished(data) if strip_ansi else 0)


def _unfinished_character(data: bytes) -> int:
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
