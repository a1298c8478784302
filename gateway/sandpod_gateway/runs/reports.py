"""A runner's list of runs and contexts, checked and bounded, and what callers see of it. Pure."""

from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from pydantic import Field

from sandpod_api.base import rfc3339
from sandpod_gateway.api.run_results import ContextInfo, Outcome, RunInfo
from sandpod_gateway.runner.messages import Message
from sandpod_gateway.runner.run_ids import run_id

MAX_LISTED: Final = 1000

_Name = Annotated[str, Field(min_length=1, max_length=128)]
_Time = Annotated[float, Field(ge=0, le=253_402_300_000)]  # within the year 9999, the last that a datetime has


class _Run(Message):
    run: _Name
    language: Annotated[str, Field(max_length=32)]
    state: Literal["live", "ended"]
    detached: bool = False
    context: _Name | None = None
    started: _Time
    outcome: Outcome | None = None


class _Context(Message):
    name: _Name
    language: Annotated[str, Field(max_length=32)]
    state: Literal["idle", "busy", "lost"]
    started: _Time


class Listing(Message):
    """The reply to `list`."""

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


def _rfc3339(time: float) -> str:
    return rfc3339(datetime.fromtimestamp(time, UTC))
