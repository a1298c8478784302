"""How long a claimed sandbox is to live from now on, and its suspension when its caller wants that."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from sandpod_api.fields import MAX_LIFETIME
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import Backend, SandboxRecord
from sandpod_gateway.backends.refusals import invalid
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.sandboxes.service import Sandboxes


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Changes them for callers' own sandboxes, which they have found."""

    sandboxes: Sandboxes
    backend: Backend

    async def set_end(self, record: SandboxRecord, seconds: int, *, shorten: bool) -> None:
        """Let a sandbox live for so many seconds from now on, or at least so many. Raises invalid_argument."""
        if (wanted := lifetime_until(record, seconds, datetime.now(UTC), shorten=shorten)) is not None:
            await self.backend.set_lifetime(record.name, ttl=wanted[0], idle_timeout=wanted[1])

    async def suspend(self, record: SandboxRecord) -> None:
        """Suspend a sandbox, with what runs in it; its next use resumes it. Raises invalid_argument, session_busy."""
        check_suspension(record)
        await self.sandboxes.disconnect(record.name)
        await self.backend.suspend(record.name)


def lifetime_until(record: SandboxRecord, seconds: int, now: datetime, *, shorten: bool) -> tuple[int, int] | None:
    """Return the ttl and idle timeout by which a sandbox lives for so many seconds, used or not; None if it does.

    Unless it may `shorten` it they are the least. One that is suspended when idle goes on being so, after as long.
    Raises SandpodError: invalid_argument, for more than a sandbox may live.
    """
    ttl = math.ceil((now - record.created).total_seconds()) + seconds
    if record.persistent and shorten:
        ttl, idle = record.ttl, min(seconds, record.ttl)
    elif ttl > MAX_LIFETIME:
        step = "Ask for less, or create another sandbox."
        raise invalid(f"A sandbox lives for {MAX_LIFETIME} seconds at most from its start.", step)
    else:
        idle = ttl if shorten else seconds
    if not shorten:
        ttl, idle = max(ttl, record.ttl), max(idle, record.idle_timeout)
    wanted = ttl, min(idle, ttl)
    return None if wanted == (record.ttl, record.idle_timeout) else wanted


def check_suspension(record: SandboxRecord) -> None:
    """Raise for a sandbox that can't be suspended: invalid_argument, or session_busy for one that does not run."""
    if record.status != "Ready":
        message = f"The sandbox does not run: it is {record.status.lower()}."
        raise SandpodError(ErrorCode.SESSION_BUSY, message, next_step="Use it to resume it, or try again in a moment.")
    if not record.persistent:
        message = "This sandbox can't be suspended: its files would be lost, since its workspace is not persistent."
        raise invalid(message, "Create one with a persistent workspace, where a template allows that.")
