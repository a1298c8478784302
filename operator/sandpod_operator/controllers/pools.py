"""Pools: what there is of each, and what is remembered of how its sandboxes did."""

import secrets
from datetime import datetime
from typing import Final

from sandpod_api.types import Sandbox, SandboxPool
from sandpod_kube.resources import Key
from sandpod_operator.controllers.controller import Controller
from sandpod_operator.model.actions import PatchStatus
from sandpod_operator.model.observed import ObservedPool
from sandpod_operator.model.pool_backoff import PoolBackoff
from sandpod_operator.planning.pool import PoolPlan, plan_pool
from sandpod_operator.status.pool import is_warm

# Without vowels and look-alikes, as Kubernetes' own: no words, no confusion.
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX: Final = 8


class PoolController(Controller[ObservedPool, PoolPlan]):
    """Observes, plans and records pools."""

    async def observe(self, key: Key, now: datetime) -> ObservedPool | None:  # noqa: ARG002 - others depend on it
        """Return what there is of a pool."""
        store, state = self.context.store, self.context.state
        pool = store.pool(key.namespace, key.name)
        if pool is None:
            self.context.metrics.forget_pool(key.namespace, key.name)
            self.context.admission.forget_pool(key)
            return None
        uid = pool.metadata.uid
        return ObservedPool(
            pool=pool,
            members=tuple(s for s in store.members(key.namespace, key.name) if is_member(s, pool)),
            template=store.template(key.namespace, pool.spec.template_ref.name),
            failures=state.failures.get(uid, 0),
            suffixes=tuple(_suffix() for _ in range(self.context.settings.pool_burst)),
            status_written=state.status_written.get(uid),
            backoff=state.backoffs.get(uid, PoolBackoff()),
            neighbours=self.context.admission.neighbours(key),
        )

    def plan(self, observed: ObservedPool, now: datetime) -> PoolPlan:
        """Return what is to be done about a pool."""
        return plan_pool(observed, self.context.settings, now)

    def record(self, observed: ObservedPool, plan: PoolPlan, now: datetime) -> None:
        """Remember how the pool's sandboxes did, what it has, and what it gave up."""
        state, admission, metadata = self.context.state, self.context.admission, observed.pool.metadata
        state.failures[metadata.uid], state.backoffs[metadata.uid] = plan.failures, plan.backoff
        if any(isinstance(action, PatchStatus) for action in plan.actions):
            state.status_written[metadata.uid] = now
        ready = sum(is_warm(m) for m in observed.members)
        self.context.metrics.set_pool(
            metadata.namespace, metadata.name, wanted=observed.pool.spec.replicas, ready=ready
        )
        if plan.gives_to is not None:
            admission.gave(plan.gives_to)
        if plan.share is not None:
            admission.took_share(plan.share)


def is_member(sandbox: Sandbox, pool: SandboxPool) -> bool:
    """Return whether an unclaimed Sandbox belongs to the pool: by uid, since the pool may have been made anew."""
    owned = any(reference.get("uid") == pool.metadata.uid for reference in sandbox.metadata.owner_references)
    return owned and sandbox.spec.claim is None and sandbox.metadata.deletion_timestamp is None


def _suffix() -> str:
    # Not by secrets.choice: names need not be of even odds, and many are drawn for each event of a pool.
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in secrets.token_bytes(_SUFFIX))
