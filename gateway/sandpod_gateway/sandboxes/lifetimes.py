"""How long a claimed sandbox is to live from now on, and whether it can be suspended. Pure."""

import math
from datetime import datetime

from sandpod_api.fields import MAX_LIFETIME
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import SandboxRecord, invalid
from sandpod_gateway.errors import SandpodError


def lifetime_until(record: SandboxRecord, seconds: int, now: datetime, *, shorten: bool) -> tuple[int, int] | None:
    """Return the ttl and idle timeout by which a sandbox lives for so many seconds, used or not; None if it does.

    Unless it may `shorten` it they are the least. One that is suspended when idle goes on being so, after as long.
    Raises SandpodError: invalid_argument, for more than a sandbox may live.
    """
    ttl = math.ceil((now - record.created).total_seconds()) + seconds
    if record.persistent:
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


def check_pause(record: SandboxRecord) -> None:
    """Raise for a sandbox that can't be suspended: invalid_argument, or session_busy for one that does not run."""
    if record.status != "Ready":
        message = f"The sandbox does not run: it is {record.status.lower()}."
        raise SandpodError(ErrorCode.SESSION_BUSY, message, next_step="Use it to resume it, or try again in a moment.")
    if not record.persistent:
        message = "This sandbox can't be suspended: its files would be lost, since its workspace is not persistent."
        raise invalid(message, "Create one with a persistent workspace, where a template allows that.")
