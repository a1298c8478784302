"""Turns what a reconcile saw into metrics. Called by `reconcile.py`; it decides nothing."""

from sandpod_api import names
from sandpod_api.conditions import ConditionType, find, is_true
from sandpod_api.types import Sandbox
from sandpod_operator.isolation import found_open
from sandpod_operator.metrics import Metrics
from sandpod_operator.observe import ObservedNamespace, ObservedPool
from sandpod_operator.pool_status import is_warm
from sandpod_operator.status import is_final


def measure_status(metrics: Metrics, before: Sandbox, after: Sandbox | None) -> None:
    """Count what a written status says is new: a start, an end.

    Args:
        metrics: Where it is counted.
        before: The Sandbox before the write.
        after: The same after it, or None if it went meanwhile.
    """
    if after is None:
        return
    old, new = before.status, after.status
    resumed = find(new.conditions, ConditionType.SUSPENDED)
    begun = resumed.last_transition_time if resumed is not None else after.metadata.creation_timestamp
    if old.start_time is None and new.start_time is not None and begun is not None:
        made = "pool" if names.LABEL_POOL in after.metadata.labels else "direct"
        origin = "resume" if resumed is not None else made
        metrics.start_seconds.labels(origin).observe(max(0.0, (new.start_time - begun).total_seconds()))
    if is_final(new.conditions) and not is_final(old.conditions):
        metrics.ended.labels(new.reason).inc()
    if found_open(after) and not found_open(before):
        metrics.open_network.labels("ended" if is_final(new.conditions) else "allowed").inc()
    expired = find(new.conditions, ConditionType.EXPIRED)
    if expired is not None and expired.status == "True" and not is_true(old.conditions, ConditionType.EXPIRED):
        metrics.ended.labels(expired.reason).inc()


def measure_pool(metrics: Metrics, observed: ObservedPool) -> None:
    """Set a pool's gauges."""
    metadata = observed.pool.metadata
    metrics.pool_wanted.labels(metadata.namespace, metadata.name).set(observed.pool.spec.replicas)
    metrics.pool_ready.labels(metadata.namespace, metadata.name).set(sum(is_warm(m) for m in observed.members))


def measure_namespace(metrics: Metrics, observed: ObservedNamespace) -> None:
    """Tell which policies of others open something to sandboxes, and forget those that do no more."""
    metrics.set_widening(observed.namespace, {policy.name for policy in observed.widening})
