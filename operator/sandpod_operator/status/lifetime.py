"""When a sandbox ends.

The idle clock starts at the claim, and again at every use that the gateway records and at every resume; the ttl runs
from the claim, used, suspended or not. At its idle timeout a sandbox ends, or is suspended where `suspends` says so. A
Sandbox that nobody holds and no pool owns ends too, so that none lives for ever.
"""

from datetime import datetime, timedelta

from sandpod_api import names
from sandpod_api.conditions import ConditionType, Reason, find
from sandpod_api.types import Sandbox, SandboxStatus

_CLOCK_SKEW = timedelta(seconds=60)


def last_activity(sandbox: Sandbox, now: datetime) -> datetime | None:
    """Return when the sandbox was last used, or None while it is not claimed.

    An annotation that is no time, or far ahead of our clock, counts as none: it would keep the sandbox alive.
    """
    if (claim := sandbox.spec.claim) is None:
        return None
    start = max(claim.time, resumed(sandbox, now) or claim.time)
    used = sandbox.metadata.time_in(names.ANNOTATION_LAST_ACTIVITY)
    return start if used is None or used > now + _CLOCK_SKEW else max(used, start)


def resumed(sandbox: Sandbox, now: datetime) -> datetime | None:
    """Return when the sandbox was last resumed, which is now where its status does not say it yet; None if never."""
    before = find(sandbox.status.conditions, ConditionType.SUSPENDED)
    if before is None or sandbox.spec.operating_mode == "Suspended":
        return None
    return now if before.status == "True" else before.last_transition_time


def ttl_end(sandbox: Sandbox) -> datetime | None:
    """Return the end that no use postpones, or None for one that waits in a pool: the pool's maxAge bounds it."""
    lifetime = timedelta(seconds=sandbox.spec.lifetime.ttl)
    if sandbox.spec.claim is not None:
        return sandbox.spec.claim.time + lifetime
    if names.LABEL_POOL in sandbox.metadata.labels or sandbox.metadata.creation_timestamp is None:
        return None
    return sandbox.metadata.creation_timestamp + lifetime


def idle_end(sandbox: Sandbox, now: datetime) -> datetime | None:
    """Return when it ends if it is not used before, or None while it is not claimed.

    A background run that was begun counts as use until its own timeout: the ttl bounds that whatever it says.
    """
    used = last_activity(sandbox, now)
    if used is None:
        return None
    busy = sandbox.metadata.time_in(names.ANNOTATION_BUSY_UNTIL) or used
    return max(used, min(busy, ttl_end(sandbox) or used)) + timedelta(seconds=sandbox.spec.lifetime.idle_timeout)


def expires_at(sandbox: Sandbox, now: datetime, *, suspends: bool = False) -> datetime | None:
    """Return when the sandbox ends if it is not used before."""
    idle = None if suspends or sandbox.spec.operating_mode == "Suspended" else idle_end(sandbox, now)
    return min((end for end in (ttl_end(sandbox), idle) if end is not None), default=None)


def expiry(sandbox: Sandbox, now: datetime, *, suspends: bool = False) -> Reason | None:
    """Return why the sandbox has expired, or None while it lives. Once expired it stays so, whatever is used later."""
    before = find(sandbox.status.conditions, ConditionType.EXPIRED)
    if before is not None and before.status == "True":
        return Reason.IDLE_TIMEOUT if before.reason == Reason.IDLE_TIMEOUT else Reason.TTL_EXPIRED
    ttl = ttl_end(sandbox)
    if ttl is not None and ttl <= now:
        return Reason.TTL_EXPIRED
    end = expires_at(sandbox, now, suspends=suspends)
    return Reason.IDLE_TIMEOUT if end is not None and end <= now else None


def shown(sandbox: Sandbox, now: datetime, *, suspends: bool) -> tuple[datetime | None, datetime | None]:
    """Return last use and end for the status; the old ones while they are nearly right, so that a use costs no write.

    The end that is shown is then up to a tenth of the idle timeout early, never late.
    """
    used = last_activity(sandbox, now)
    expires = expires_at(sandbox, now, suspends=suspends)
    old = sandbox.status
    if used is None or expires is None or old.last_activity_time is None or old.expires_at is None:
        return used, expires
    slack = sandbox.spec.lifetime.idle_timeout / 10
    same = old.observed_generation == sandbox.metadata.generation and old.expires_at > now
    if same and abs((used - old.last_activity_time).total_seconds()) < slack:
        return old.last_activity_time, old.expires_at
    return used, expires


def suspend_at(sandbox: Sandbox, now: datetime, *, suspends: bool) -> datetime | None:
    """Return when the sandbox is to be suspended if it is not used before, or None if it never is."""
    return idle_end(sandbox, now) if suspends and sandbox.spec.operating_mode == "Running" else None


def start_seconds(sandbox: Sandbox, status: SandboxStatus) -> tuple[float | None, bool]:
    """Return the seconds that a start took, if it is known, and whether it was a resume."""
    resumed = find(status.conditions, ConditionType.SUSPENDED)
    begun = resumed.last_transition_time if resumed is not None else sandbox.metadata.creation_timestamp
    if begun is None or status.start_time is None:
        return None, resumed is not None
    return max(0.0, (status.start_time - begun).total_seconds()), resumed is not None
