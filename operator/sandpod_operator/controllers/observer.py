"""What there is of each object, for its plan; where the quota is full, a sandbox that wants a pod joins the line."""

import secrets
from dataclasses import replace
from datetime import datetime
from typing import Final

from sandpod_api import names
from sandpod_api.conditions import ConditionType, is_true
from sandpod_kube.resources import Key
from sandpod_operator.controllers.context import Context
from sandpod_operator.manifests.pod import find_profile
from sandpod_operator.manifests.security import host_users_setting, opened_by
from sandpod_operator.model.observed import ObservedPool, ObservedSandbox, PoolBackoff
from sandpod_operator.planning.network_policies import is_closed
from sandpod_operator.planning.sandbox import wants_pod

# Without vowels and look-alikes, as Kubernetes' own: no words, no confusion.
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX: Final = 8


async def observe_sandbox(context: Context, key: Key, now: datetime) -> ObservedSandbox | None:
    """Return what there is of a Sandbox; None once it is gone."""
    store, state, settings = context.store, context.state, context.settings
    sandbox, found = store.sandbox(key.namespace, key.name), store.pod(key.namespace, key.name)
    if sandbox is None:
        return None
    pod = found if found is not None and found.metadata.owned_by(sandbox.metadata.uid) else None
    template = store.template(key.namespace, sandbox.spec.template_ref.name)
    profile = find_profile(sandbox, template) if template is not None and found is None else None
    observed = ObservedSandbox(
        sandbox=sandbox,
        pod=pod,
        name_taken=found is not None and pod is None,
        template=template,
        refusal=state.refusals.get(sandbox.metadata.uid),
        closed=is_closed(key.namespace, store.policy(key.namespace, names.POLICY_DENY_ALL)),
        kernel=state.kernels.get(pod.metadata.uid) if pod is not None else None,
        open_allowed=settings.allow_open_network,
        opened=opened_by(profile, template, settings) if template is not None and profile is not None else None,
    )
    if pod is not None and pod.node_name is not None and _has_to_compare(observed):
        # Once for each pod, and not for each node: nodes restart.
        state.kernels[pod.metadata.uid] = kernel = await context.nodes.kernel(pod.node_name)
        observed = replace(observed, kernel=kernel)
    spec = template.spec if template is not None and pod is None else None
    if spec and host_users_setting(spec, default=settings.host_users) is None:
        observed = replace(observed, user_namespaces=await context.nodes.give_user_namespaces(spec))
    held = context.line(key.namespace).held(sandbox, wants=wants_pod(observed, settings, now))
    return observed if held is None else replace(observed, refusal=held)


def _has_to_compare(observed: ObservedSandbox) -> bool:
    """Return whether the pod has reported which kernel it sees, and nobody has compared that with its node's."""
    pod, template, status = observed.pod, observed.template, observed.sandbox.status
    if status.start_time is not None and is_true(status.conditions, ConditionType.KERNEL_ISOLATED):
        return False
    wanted = template is not None and template.spec.runtime_class_name is not None
    return wanted and pod is not None and pod.kernel != "" and observed.kernel is None


def observe_pool(context: Context, key: Key) -> ObservedPool | None:
    """Return what there is of a pool; None, and forget it, once it is gone."""
    store, state = context.store, context.state
    pool = store.pool(key.namespace, key.name)
    if pool is None:
        context.metrics.forget_pool(key.namespace, key.name)
        context.line(key.namespace).forget_pool(key)
        return None
    uid = pool.metadata.uid
    # By uid, since the pool may have been made anew.
    owned = (s for s in store.members(key.namespace, key.name) if s.metadata.owned_by(uid))
    return ObservedPool(
        pool=pool,
        members=tuple(s for s in owned if s.metadata.deletion_timestamp is None),
        template=store.template(key.namespace, pool.spec.template_ref.name),
        # Not by secrets.choice: names need not be of even odds, and many are drawn for each event of a pool.
        suffixes=tuple(
            "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in secrets.token_bytes(_SUFFIX))
            for _ in range(context.settings.pool_burst)
        ),
        backoff=state.backoffs.get(uid, PoolBackoff()),
        neighbours=context.line(key.namespace).neighbours(key),
    )
