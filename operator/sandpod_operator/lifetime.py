"""When a sandbox ends. Called by `status.py` and `plan.py`; pure.

The idle clock starts at the claim and again at every use that the gateway notes; the ttl runs from the claim, used or
not. A Sandbox that nobody holds and no pool owns ends too, so that none lives for ever.
"""

from datetime import datetime, timedelta

from sandpod_api import names
from sandpod_api.conditions import ConditionType, Reason, find
from sandpod_api.types import Sandbox

_CLOCK_SKEW = timedelta(seconds=60)


def last_activity(sandbox: Sandbox, now: datetime) -> datetime | None:
    """Return when the sandbox was last used, or None while nobody holds it.

    A note that is no time, or far ahead of our clock, counts as none: it would keep the sandbox alive.
    """
    claim = sandbox.spec.claim
    if claim is None:
        return None
    noted = _parse(sandbox.metadata.annotations.get(names.ANNOTATION_LAST_ACTIVITY, ""))
    if noted is None or noted > now + _CLOCK_SKEW:
        return claim.time
    return max(noted, claim.time)


def _parse(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else None


def ttl_end(sandbox: Sandbox) -> datetime | None:
    """Return the end that no use moves, or None for one that waits in a pool: the pool's maxAge bounds it."""
    lifetime = timedelta(seconds=sandbox.spec.lifetime.ttl)
    if sandbox.spec.claim is not None:
        return sandbox.spec.claim.time + lifetime
    if names.LABEL_POOL in sandbox.metadata.labels or sandbox.metadata.creation_timestamp is None:
        return None
    return sandbox.metadata.creation_timestamp + lifetime


def idle_end(sandbox: Sandbox, now: datetime) -> datetime | None:
    """Return the end unless it is used before, or None while nobody holds it.

    A background run that was begun counts as use until its own timeout: the ttl bounds that note whatever it says.
    """
    used = last_activity(sandbox, now)
    if used is None:
        return None
    busy = _parse(sandbox.metadata.annotations.get(names.ANNOTATION_BUSY_UNTIL, "")) or used
    return max(used, min(busy, ttl_end(sandbox) or used)) + timedelta(seconds=sandbox.spec.lifetime.idle_timeout)


def expires_at(sandbox: Sandbox, now: datetime) -> datetime | None:
    """Return when the sandbox ends unless it is used before."""
    ends = [end for end in (ttl_end(sandbox), idle_end(sandbox, now)) if end is not None]
    return min(ends, default=None)


def expiry(sandbox: Sandbox, now: datetime) -> Reason | None:
    """Return why the sandbox has expired, or None while it lives. Once expired it stays so, whatever is noted later."""
    before = find(sandbox.status.conditions, ConditionType.EXPIRED)
    if before is not None and before.status == "True":
        return Reason.IDLE_TIMEOUT if before.reason == Reason.IDLE_TIMEOUT else Reason.TTL_EXPIRED
    ttl = ttl_end(sandbox)
    if ttl is not None and ttl <= now:
        return Reason.TTL_EXPIRED
    idle = idle_end(sandbox, now)
    return Reason.IDLE_TIMEOUT if idle is not None and idle <= now else None
