"""Counts what is new in the status of a Sandbox."""

from sandpod_api import names
from sandpod_api.conditions import ConditionType, find, is_true
from sandpod_api.types import Sandbox
from sandpod_operator.cache.object_cache import Store
from sandpod_operator.controllers.context import Context
from sandpod_operator.manifests.pod import found_open
from sandpod_operator.status import lifetime
from sandpod_operator.status.sandbox import is_final


def record_status(context: Context, before: Sandbox) -> None:
    """Count what the status of a Sandbox, as it was before a write and is now in the store, says is new."""
    metrics, store = context.metrics, context.store
    after = store.sandbox(before.metadata.namespace, before.metadata.name)
    if after is None:
        return
    old, new = before.status, after.status
    seconds, resumed = lifetime.start_seconds(after, new)
    if old.start_time is None and seconds is not None:
        origin = "resume" if resumed else "pool" if names.LABEL_POOL in after.metadata.labels else "direct"
        metrics.start_seconds.labels(origin).observe(seconds)
        if origin == "direct" and (pool := _pool_missed(store, after)):
            context.count_claim(after.metadata.namespace, pool, origin)
    if is_final(new.conditions) and not is_final(old.conditions):
        metrics.ended.labels(new.reason).inc()
    if found_open(after) and not found_open(before):
        metrics.open_network.labels("ended" if is_final(new.conditions) else "allowed").inc()
    for probe, kind in (("network", ConditionType.NETWORK_ISOLATED), ("kernel", ConditionType.KERNEL_ISOLATED)):
        if _is_false(after, kind) and not _is_false(before, kind):
            metrics.probe_failures.labels(probe).inc()
    expired = find(new.conditions, ConditionType.EXPIRED)
    if expired is not None and expired.status == "True" and not is_true(old.conditions, ConditionType.EXPIRED):
        metrics.ended.labels(expired.reason).inc()


def _is_false(sandbox: Sandbox, kind: ConditionType) -> bool:
    return (found := find(sandbox.status.conditions, kind)) is not None and found.status == "False"


def _pool_missed(store: Store, sandbox: Sandbox) -> str:
    """Return the pool that was too empty for a claim, so that a Sandbox was made for it; empty where none would do.

    Where several have its template it is the first by name: each claim is counted once.
    """
    spec, metadata = sandbox.spec, sandbox.metadata
    template = store.template(metadata.namespace, spec.template_ref.name)
    if template is None or names.ANNOTATION_CLAIM_ID not in metadata.annotations:
        return ""
    # Warm ones have no network profile and their template's workspace: who asks for others never gets one.
    if spec.network != names.NETWORK_NONE or spec.workspace not in (None, template.spec.workspace):
        return ""
    pools = (pool for pool in store.pools(metadata.namespace) if pool.spec.template_ref == spec.template_ref)
    return min((pool.metadata.name for pool in pools), default="")
