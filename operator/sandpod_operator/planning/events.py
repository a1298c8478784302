"""Turns changes of a status into Events, so that `kubectl describe` shows what happened, when and why.

An Event is made where the status changes, so a restart repeats none.
"""

from collections.abc import Iterator
from datetime import datetime
from functools import partial

from sandpod_api.base import rfc3339
from sandpod_api.conditions import Condition, ConditionType, Reason, find, is_true
from sandpod_api.types import Sandbox, SandboxPool, SandboxPoolStatus, SandboxStatus
from sandpod_kube.resources import POOLS, SANDBOXES
from sandpod_operator.model.actions import Emit

# Reasons for not being ready that need nothing done.
_QUIET = frozenset({Reason.POD_PENDING, Reason.STARTING, Reason.SUSPENDED, Reason.TTL_EXPIRED, Reason.IDLE_TIMEOUT})

_Status = SandboxStatus | SandboxPoolStatus


def sandbox_events(sandbox: Sandbox, new: SandboxStatus) -> Iterator[Emit]:
    """Return the Events of a status that is about to replace the Sandbox's."""
    emit, old = partial(Emit, SANDBOXES, sandbox.metadata), sandbox.status
    if None not in {old.network, new.network} and old.network != new.network:
        yield emit("NetworkChanged", f"Network profile {new.network!r} has replaced {old.network!r}.")
    now, was = _both(new, old, ConditionType.NETWORK_APPLIED)
    refused = now is not None and now.status == "False" and now.reason != Reason.APPLYING
    if now is not None and refused and (was is None or was.message != now.message):
        yield emit(now.reason, now.message, "Warning")
    if is_true(new.conditions, ConditionType.READY) and not is_true(old.conditions, ConditionType.READY):
        yield emit("Ready", f"{new.pod_name} accepts runs on {new.node_name}{_took(sandbox, new)}.")
    if sandbox.spec.claim is not None and old.phase == "Warm":
        until = f" and ends at {rfc3339(new.expires_at)} unless it is used before" if new.expires_at else ""
        yield emit("Claimed", f"It was claimed from its pool{until}.")
    now, was = _both(new, old, ConditionType.SUSPENDED)
    if now is not None and now.status != (was.status if was is not None else "False"):
        yield emit(now.reason, now.message)
    now, was = _both(new, old, ConditionType.READY)
    trouble = now is not None and now.status == "False" and now.reason not in _QUIET
    if now is not None and trouble and (was is None or was.reason != now.reason):
        yield emit(now.reason, now.message, "Warning")
    now, was = _both(new, old, ConditionType.EXPIRED)
    if now is not None and now.status == "True" and (was is None or was.status != "True"):
        yield emit(now.reason, now.message)


def _both(new: _Status, old: _Status, kind: ConditionType) -> tuple[Condition | None, Condition | None]:
    return find(new.conditions, kind), find(old.conditions, kind)


def idle_suspended(sandbox: Sandbox, end: datetime | None) -> Emit:
    """Return the Event of an idle sandbox that is being suspended."""
    until = f" until {rfc3339(end)}, when its ttl ends" if end is not None else ""
    message = f"Idle for {sandbox.spec.lifetime.idle_timeout} s, so it is suspended. Its files are kept{until}."
    return Emit(SANDBOXES, sandbox.metadata, Reason.IDLE_TIMEOUT, message)


def pool_events(pool: SandboxPool, new: SandboxPoolStatus) -> Iterator[Emit]:
    """Return the Events of a status that is about to replace the pool's."""
    now, was = _both(new, pool.status, ConditionType.PROGRESSING)
    same = now is not None and was is not None and (was.reason, was.message) == (now.reason, now.message)
    if now is not None and not same and now.reason == Reason.POOL_BLOCKED:
        yield Emit(POOLS, pool.metadata, now.reason, now.message, "Warning")


def _took(sandbox: Sandbox, new: SandboxStatus) -> str:
    resumed = find(new.conditions, ConditionType.SUSPENDED)
    begun = resumed.last_transition_time if resumed is not None else sandbox.metadata.creation_timestamp
    if begun is None or new.start_time is None:
        return ""
    seconds = max(0, round((new.start_time - begun).total_seconds()))
    return f", {seconds} s after it was {'resumed' if resumed is not None else 'created'}"
