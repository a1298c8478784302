"""What one reconcile sees: frozen values, and how they are read out of the store.

Called by `reconcile.py`. The plans and `status.py` work on these values alone: whatever is not in here can't decide
anything. It writes nothing.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sandpod_api import names
from sandpod_api.conditions import ConditionType, find
from sandpod_api.types import Sandbox, SandboxPool, SandboxTemplate
from sandpod_kube import resources
from sandpod_kube.resources import Key
from sandpod_operator.kernels import Kernel
from sandpod_operator.manifests import find_profile
from sandpod_operator.notes import Notes, Refusal
from sandpod_operator.pace import Pace
from sandpod_operator.pods import Pod
from sandpod_operator.policies import build_deny_all, in_force
from sandpod_operator.probes import opened_by
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.shares import Neighbours
from sandpod_operator.store import Store
from sandpod_operator.widening import Widening

# Without vowels and look-alikes, as Kubernetes' own: no words, no confusion.
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX: Final = 8
MAX_WIDENING: Final = 50  # each is a series of a metric and an Event


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedSandbox:
    """A Sandbox and what belongs to it.

    Attributes:
        sandbox: The object.
        pod: Its own pod; one that an earlier Sandbox of the same name left is not.
        name_taken: Whether such a pod is still there.
        template: Its template, if it exists.
        refusal: Why its pod was not taken when it was last tried.
        closed: Whether the namespace's deny-all policy is in force.
        kernel: The kernel of its pod's node, once that was looked at.
        user_namespaces: Whether the nodes that may run its pod can give it a user namespace of its own; asked only
            where that decides.
        open_allowed: Whether the operator lets sandboxes serve whose network is open.
        opened: What its profile opens although no sandbox may reach it, as host:port and as far as that is known before
            its pod has a node; asked only where that decides.
    """

    sandbox: Sandbox
    pod: Pod | None = None
    name_taken: bool = False
    template: SandboxTemplate | None = None
    refusal: Refusal | None = None
    closed: bool = True
    kernel: Kernel | None = None
    user_namespaces: bool = False
    open_allowed: bool = False
    opened: str | None = None

    @property
    def was_ready(self) -> bool:
        """Whether it has been ready since it last began to run: a resume begins anew, with another pod."""
        return self.sandbox.status.start_time is not None and self.sandbox.spec.operating_mode == "Running"

    @property
    def persistent(self) -> bool:
        """Whether its workspace outlives its pod, as far as that is known: without its template only its own says."""
        workspace = self.sandbox.spec.workspace or (self.template.spec.workspace if self.template is not None else None)
        return workspace is not None and workspace.persistent

    @property
    def suspends(self) -> bool:
        """Whether it is suspended when idle, where others end."""
        return self.persistent and (self.template is None or self.template.spec.when_idle == "Suspend")


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedPool:
    """A pool and the unclaimed Sandboxes that it owns.

    Attributes:
        pool: The object.
        members: Its warm sandboxes, in no order, without those that are being deleted.
        template: Its template, if it exists.
        failures: Warm sandboxes that failed since one was last ready.
        suffixes: Unused name endings, one for each sandbox that may be made now.
        status_written: When the pool's status was last written.
        pace: How its sandboxes have done.
        neighbours: What the others in the namespace wait for.
    """

    pool: SandboxPool
    members: tuple[Sandbox, ...] = ()
    template: SandboxTemplate | None = None
    failures: int = 0
    suffixes: tuple[str, ...] = ()
    status_written: datetime | None = None
    pace: Pace = field(default_factory=Pace)
    neighbours: Neighbours = field(default_factory=Neighbours)


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedTemplate:
    """A template and the network policies that were made for it, by name."""

    template: SandboxTemplate
    policies: Mapping[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedNamespace:
    """A namespace with sandboxes.

    Attributes:
        namespace: Its name.
        closed: Whether its deny-all policy is in force.
        widening: Policies of others that open something to sandbox pods, the first ones by name.
    """

    namespace: str
    closed: bool = True
    widening: tuple[Widening, ...] = ()


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
    found = (Widening.of(policy, templates) for policy in store.policies(namespace))
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
