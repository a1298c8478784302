"""What a pool's status says: how many sandboxes are ready, and why it is not full."""

from collections import Counter
from datetime import datetime

from sandpod_api import names
from sandpod_api.conditions import Condition, ConditionType, Reason, find, is_true, merge
from sandpod_api.types import Sandbox, SandboxPoolStatus
from sandpod_operator.model.observed import ObservedPool
from sandpod_operator.status.failures import MAX_MESSAGE, Cause, cause, clean

_PASSING = frozenset({Reason.POD_PENDING, Reason.STARTING, Reason.START_RETRIED, Reason.OPEN_NETWORK_ALLOWED})
_ORDER = "Free places go to claims first, then to the pool with the smallest share of its replicas."
_CLAIMS_FIRST = "Claimed sandboxes are waiting for a node and go first."


def is_warm(sandbox: Sandbox) -> bool:
    """Return whether a pool's sandbox can be claimed."""
    return is_true(sandbox.status.conditions, ConditionType.READY)


def is_stuck(sandbox: Sandbox) -> bool:
    """Return whether its status says that something prevents it from starting."""
    ready = find(sandbox.status.conditions, ConditionType.READY)
    return ready is not None and ready.status != "True" and ready.reason not in _PASSING


def lacks_quota(sandbox: Sandbox) -> bool:
    """Return whether it is waiting for a place in the quota."""
    return sandbox.status.reason == Reason.QUOTA_EXCEEDED


def lacks_node(sandbox: Sandbox) -> bool:
    """Return whether no node can run it."""
    return sandbox.status.reason == Reason.UNSCHEDULABLE


def compute_pool_status(observed: ObservedPool, now: datetime) -> SandboxPoolStatus:
    """Return the status that a pool should have."""
    pool = observed.pool
    ready = sum(is_warm(m) for m in observed.members)
    full, blocked = ready >= pool.spec.replicas, _blocked(observed, now)
    return SandboxPoolStatus(
        replicas=len(observed.members),
        ready_replicas=ready,
        selector=f"{names.LABEL_POOL}={pool.metadata.name},{names.LABEL_STATE}={names.STATE_WARM}",
        reason=None if full else (blocked or cause(Reason.POOL_FILLING)).reason,
        conditions=merge(pool.status.conditions, _conditions(observed, ready, blocked), now),
        observed_generation=pool.metadata.generation,
    )


def _conditions(observed: ObservedPool, ready: int, blocked: Cause | None) -> list[Condition]:
    filling = cause(Reason.POOL_FILLING)
    if ready >= observed.pool.spec.replicas:
        available = progressing = cause(Reason.POOL_FULL)
        progresses = False
    else:
        available = filling if ready else blocked or cause(Reason.POOL_EMPTY)
        progressing, progresses = blocked or filling, blocked is None
    found = [
        available.condition(ConditionType.AVAILABLE, status=ready > 0 or available.reason == Reason.POOL_FULL),
        progressing.condition(ConditionType.PROGRESSING, status=progresses),
    ]
    generation = observed.pool.metadata.generation
    return [c.model_copy(update={"observed_generation": generation}) for c in found]


def _blocked(observed: ObservedPool, now: datetime) -> Cause | None:
    """Return what prevents warm sandboxes from starting: the most common reason among them, with its message."""
    if observed.template is None:
        name = observed.pool.spec.template_ref.name
        return Cause(Reason.POOL_BLOCKED, f"SandboxTemplate {name!r} does not exist in this namespace.")
    stuck = sorted((m for m in observed.members if is_stuck(m)), key=lambda m: m.metadata.name)
    reasons = [ready for m in stuck if (ready := find(m.status.conditions, ConditionType.READY)) is not None]
    if reasons:
        commonest = Counter(ready.reason for ready in reasons).most_common(1)[0][0]
        message = next(ready.message for ready in reasons if ready.reason == commonest)
        order = f" {_ORDER}" if commonest == Reason.QUOTA_EXCEEDED else ""
        return Cause(Reason.POOL_BLOCKED, clean(f"{commonest}: {message[: MAX_MESSAGE - 200]}{order}"))
    yields = observed.neighbours.nodes_yield_until
    if yields is not None and now < yields and observed.backoff.window == 1:
        return Cause(Reason.POOL_BLOCKED, f"{Reason.UNSCHEDULABLE}: {_CLAIMS_FIRST}")
    return None
