"""One run of `sandpod verify`: what is seen, and what the rows say of it."""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime

from sandpod_api.base import rfc3339
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.verify.model import Evidence, Finding, Kind, Status, exit_code, judged
from sandpod_gateway.verify.rows import ROWS


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All findings of one run."""

    kind: Kind
    target: str  # what was tried, in words
    started: str  # RFC 3339
    seconds: float
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """Return that of the command."""
        return exit_code(list(self.findings))

    def count(self, status: Status) -> int:
        """Return how many rows ended so."""
        return sum(finding.verdict.status is status for finding in self.findings)


async def run(kind: Kind, target: str, collecting: Awaitable[Evidence], *, seconds: float) -> Report:
    """Collect evidence and judge it.

    Raises SandpodError: nothing could be tried, or not in that time. What was made is removed then, too.
    """
    began, started = time.monotonic(), rfc3339(datetime.now(UTC))
    try:
        async with asyncio.timeout(seconds):
            evidence = await collecting
    except TimeoutError as error:
        message = f"It was not over in {seconds:g} seconds; what was made is removed."
        step = "Give it more time with --timeout, or look at why sandboxes start slowly."
        raise SandpodError(ErrorCode.TIMEOUT, message, next_step=step) from error
    findings = tuple(judged(row, kind, evidence) for row in ROWS)
    return Report(kind=kind, target=target, started=started, seconds=time.monotonic() - began, findings=findings)
