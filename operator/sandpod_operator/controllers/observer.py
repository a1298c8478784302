"""Reads what one reconcile sees out of the cache. It writes nothing."""

import secrets
from typing import Final

from sandpod_api import names
from sandpod_api.conditions import ConditionType, find
from sandpod_api.types import Sandbox, SandboxPool
from sandpod_kube import resources
from sandpod_kube.resources import Key
from sandpod_operator.cache.object_cache import Store
from sandpod_operator.controllers.state import Notes
from sandpod_operator.manifests.foreign_policies import find_widening
from sandpod_operator.manifests.network_policies import build_deny_all, in_force
from sandpod_operator.manifests.pod import find_profile
from sandpod_operator.manifests.probes import opened_by
from sandpod_operator.model.observed import (
    ObservedNamespace,
    ObservedPool,
    ObservedSandbox,
    ObservedTemplate,
)
from sandpod_operator.model.pool_backoff import Pace
from sandpod_operator.settings import OperatorSettings

# Without vowels and look-alikes, as Kubernetes' own: no words, no confusion.
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX: Final = 8
MAX_WIDENING: Final = 50  # each is a series of a metric and an Event


def observe_sandbox(store: Store, notes: Notes, key: Key, settings: OperatorSettings) -> ObservedSandbox | None:
    """Return what is known of a Sandbox, or None when it is gone."""
    sandbox = store.sandbox(key.namespace, key.name)
    if sandbox is None:
        return None
    pod = store.pod(key.namespace, key.name)
    own = pod is not None and pod.owned_by(sandbox.metadata.uid)
    deny_all = store.policy(key.namespace, names.POLICY_DENY_ALL)
    template = store.template(key.namespace, sandbox.spec.template_ref.name)
    profile = find_profile(sandbox, template) if template is not None and pod is None else None
    return ObservedSandbox(
        sandbox=sandbox,
        pod=pod if own else None,
        name_taken=pod is not None and not own,
        template=template,
        refusal=notes.refusals.get(sandbox.metadata.uid),
        closed=in_force(build_deny_all(key.namespace), deny_all),
        kernel=notes.kernels.get(pod.metadata.uid) if own and pod is not None else None,
        open_allowed=settings.allow_open_network,
        opened=opened_by(profile, template, settings) if template is not None and profile is not None else None,
    )


def node_to_look_at(observed: ObservedSandbox) -> str | None:
    """Return the node whose kernel has to be known now: the pod has told which one it sees, and nobody has compared."""
    pod, template = observed.pod, observed.template
    proved = find(observed.sandbox.status.conditions, ConditionType.KERNEL_ISOLATED)
    if observed.sandbox.status.start_time is not None and proved is not None and proved.status == "True":
        return None
    wanted = template is not None and template.spec.runtime_class_name is not None
    return pod.spec.node_name if wanted and pod is not None and pod.kernel and observed.kernel is None else None


def observe_pool(store: Store, notes: Notes, key: Key, *, burst: int) -> ObservedPool | None:
    """Return what is known of a pool, or None when it is gone.

    Args:
        store: Where objects are read.
        notes: What no object says.
        key: The pool's.
        burst: The most sandboxes that one pass may make.
    """
    pool = store.pool(key.namespace, key.name)
    if pool is None:
        return None
    uid = pool.metadata.uid
    return ObservedPool(
        pool=pool,
        members=tuple(s for s in store.members(key.namespace, key.name) if is_member(s, pool)),
        template=store.template(key.namespace, pool.spec.template_ref.name),
        failures=notes.failures.get(uid, 0),
        suffixes=tuple(_suffix() for _ in range(burst)),
        status_written=notes.status_written.get(uid),
        pace=notes.paces.get(uid, Pace()),
    )


def is_member(sandbox: Sandbox, pool: SandboxPool) -> bool:
    """Tell whether an unclaimed Sandbox belongs to the pool: by uid, since a pool of that name may have been remade."""
    owned = any(reference.get("uid") == pool.metadata.uid for reference in sandbox.metadata.owner_references)
    return owned and sandbox.spec.claim is None and sandbox.metadata.deletion_timestamp is None


def observe_template(store: Store, key: Key) -> ObservedTemplate | None:
    """Return what is known of a template, or None when it is gone."""
    template = store.template(key.namespace, key.name)
    if template is None:
        return None
    ours = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_TEMPLATE: key.name}
    policies = {
        policy["metadata"]["name"]: policy
        for policy in store.policies(key.namespace)
        if ours.items() <= policy["metadata"].get("labels", {}).items()
    }
    return ObservedTemplate(template=template, policies=policies)


def observe_namespace(store: Store, namespace: str) -> ObservedNamespace:
    """Return what is known of a namespace."""
    templates = {key.name for key in store.keys(resources.TEMPLATES) if key.namespace == namespace}
    found = (find_widening(policy, templates) for policy in store.policies(namespace))
    return ObservedNamespace(
        namespace=namespace,
        closed=in_force(build_deny_all(namespace), store.policy(namespace, names.POLICY_DENY_ALL)),
        widening=tuple(sorted(filter(None, found), key=lambda each: each.name)[:MAX_WIDENING]),
    )


def orphans(store: Store) -> list[Key]:
    """Return the pods whose Sandbox the store does not know; the API server must confirm that before they go."""
    return [
        Key(resources.PODS.kind, pod.metadata.namespace, pod.metadata.name)
        for pod in store.pods_alone()
        if not pod.deleting
    ]


def _suffix() -> str:
    # Not by secrets.choice: names need not be of even odds, and many are drawn for each event of a pool.
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in secrets.token_bytes(_SUFFIX))
