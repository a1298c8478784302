"""A Sandbox's status, computed whole on every pass: one function for each condition, then phase and the rest.

The old status decides in one case only: a sandbox that has ended stays ended, with its reason, since its files are
gone and its pod may be too.

The kernel that a sandbox reports is compared with the node's. Each boot of a kernel has an id of its own, so equal ids
mean one kernel. Where a sandbox reports none (some versions of gVisor show none of their own) the kernel's release
decides.
"""

from dataclasses import replace
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandpod_api import names
from sandpod_api.conditions import Condition, ConditionType, Reason, find, is_true, merge
from sandpod_api.types import Phase, SandboxStatus
from sandpod_operator.model.observed import Kernel, ObservedSandbox
from sandpod_operator.status import failures, lifetime, requests
from sandpod_operator.status.failures import Cause, cause
from sandpod_operator.status.network import allowed_anew, forbidden, network_applied, network_isolated, refused_at_start


def compute_status(observed: ObservedSandbox, now: datetime) -> SandboxStatus:
    """Return the status that the Sandbox should have at this time, in whole seconds."""
    observed = _current(observed)
    old, pod = observed.sandbox.status, observed.pod
    conditions = merge(old.conditions, _conditions(observed, now), now, observed.sandbox.metadata.generation)
    if is_final(conditions) and not is_final(old.conditions):
        # What is kept for a while after an end counts from the end, and not from when it was not ready yet.
        ended = {"last_transition_time": now}
        conditions = [c.model_copy(update=ended) if c.type == ConditionType.READY else c for c in conditions]
    ready = find(conditions, ConditionType.READY)
    last = old if is_over(conditions) else SandboxStatus()
    used, expires = lifetime.shown(observed.sandbox, now, suspends=observed.suspends)
    return SandboxStatus(
        phase=_phase(observed, conditions),
        reason=ready.reason if ready is not None and ready.status != "True" else None,
        conditions=conditions,
        pod_name=pod.metadata.name if pod else last.pod_name,
        node_name=pod.node_name if pod else last.node_name,
        image=pod.container_spec.image if pod else last.image,
        network=pod.network if pod else last.network,
        retried_pod=_retried_pod(observed, ready),
        volume_claim=_volume_claim(observed, conditions),
        start_time=_start_time(observed, conditions, now),
        last_activity_time=used,
        expires_at=expires,
        observed_generation=observed.sandbox.metadata.generation,
    )


def _current(observed: ObservedSandbox) -> ObservedSandbox:
    """Return what is observed, without a pod that was deleted before it was ready: nobody has lost anything.

    After a resume that is the pod from before; how it ends, and what its runner once probed, says nothing of the next.
    """
    passed = observed.pod is not None and observed.pod.deleting and not observed.was_ready and not observed.suspended
    return replace(observed, pod=None, name_taken=True) if passed else observed


def is_final(conditions: list[Condition]) -> bool:
    """Return whether the sandbox has ended by itself, for good."""
    ready = find(conditions, ConditionType.READY)
    return ready is not None and ready.status == "False" and ready.reason in failures.FINAL


def is_over(conditions: list[Condition]) -> bool:
    """Return whether the sandbox has ended, by itself or by its lifetime: it never has another pod."""
    return is_final(conditions) or is_true(conditions, ConditionType.EXPIRED)


def _conditions(observed: ObservedSandbox, now: datetime) -> list[Condition]:
    ready, expires = ready_condition(observed, now), expired(observed, now)
    # Once it is over its pod goes, and that is no news: the status that said why, and what was found, stay as they are.
    over = is_over([ready, expires])
    kept = observed.sandbox.status.conditions if over and observed.pod is None else []
    found = [
        pod_scheduled(observed, Cause.of(ready) if over else None),
        find(kept, ConditionType.NETWORK_ISOLATED) or network_isolated(observed),
        find(kept, ConditionType.NETWORK_APPLIED) or network_applied(observed),
        find(kept, ConditionType.KERNEL_ISOLATED) or kernel_isolated(observed),
        ready,
        expires,
        suspended(observed),
        requests.resized(observed),
    ]
    return [condition for condition in found if condition is not None]


def pod_scheduled(observed: ObservedSandbox, ended: Cause | None = None) -> Condition:
    """Return whether the pod has a node; with `ended`, why it no longer has one."""
    kind, pod = ConditionType.POD_SCHEDULED, observed.pod
    if ended is not None or pod is None:
        return (ended or no_pod(observed)).condition(kind, status=False)
    if pod.is_true("PodScheduled"):
        return cause(Reason.SCHEDULED).condition(kind, status=True)
    if (stuck := failures.obstacle(pod)) is not None and stuck.reason == Reason.UNSCHEDULABLE:
        return stuck.condition(kind, status=False)
    what = "a node and its volume" if observed.persistent else "a node"
    return Cause(Reason.POD_PENDING, f"The pod is waiting for {what}.").condition(kind, status=False)


def no_pod(observed: ObservedSandbox) -> Cause:
    """Return why there is no pod yet."""
    if observed.suspended:
        return _why_suspended(observed)
    if observed.template is None:
        name = observed.sandbox.spec.template_ref.name
        return Cause(Reason.TEMPLATE_NOT_FOUND, f"SandboxTemplate {name!r} does not exist in this namespace.")
    if (refused := refused_at_start(observed)) is not None:
        return refused
    if observed.refusal is not None:
        return cause(observed.refusal.reason, observed.refusal.message)
    if observed.name_taken:
        return Cause(Reason.POD_PENDING, "A pod of that name, created earlier or for something else, still exists.")
    return cause(Reason.POD_PENDING)


def _why_suspended(observed: ObservedSandbox) -> Cause:
    if observed.persistent or observed.template is None:
        return cause(Reason.SUSPENDED)
    return Cause(Reason.SUSPENDED, "The sandbox is suspended; its workspace was not persistent, so its files are gone.")


def kernel_isolated(observed: ObservedSandbox) -> Condition | None:
    """Return whether the sandbox has its own kernel; reported only where a RuntimeClass promises one."""
    before = find(observed.sandbox.status.conditions, ConditionType.KERNEL_ISOLATED)
    if observed.template is None or observed.template.spec.runtime_class_name is None:
        return None
    if before is not None and before.status == "True" and observed.was_ready:
        return before  # a pod keeps its kernel
    own, why = _compare(observed.pod.kernel if observed.pod is not None else "", observed.kernel)
    return why.condition(ConditionType.KERNEL_ISOLATED, status=own)


class _Seen(BaseModel):
    """What a sandbox reports: untrusted."""

    model_config = ConfigDict(extra="ignore", strict=True)

    boot_id: str = Field(max_length=256)
    release: str = Field(min_length=1, max_length=256)


def _compare(reported: str, node: Kernel | None) -> tuple[bool | None, Cause]:
    """Return whether the sandbox has its own kernel, by its report and the node's; None if not known, and why."""
    if node is not None and not all(node):
        return None, Cause(Reason.NODE_UNKNOWN, "The operator may not read nodes, so kernels are not compared.")
    if node is None or not reported:
        return None, cause(Reason.PROBE_PENDING)
    try:
        seen = _Seen.model_validate_json(reported)
    except ValidationError:
        return False, cause(Reason.KERNEL_SHARED, "its report of its kernel is invalid.")
    if seen.boot_id == node.boot_id if seen.boot_id else seen.release == node.release:
        return False, cause(Reason.KERNEL_SHARED, f"{node.release}{', by its boot id' if seen.boot_id else ''}.")
    return True, Cause(
        Reason.PROBED, failures.clean(f"The sandbox sees kernel {seen.release}, its node runs {node.release}.")
    )


def ready_condition(observed: ObservedSandbox, now: datetime) -> Condition:
    """Return whether the sandbox accepts runs, and if not, why."""
    why = _over(observed, now) or _again(observed) or forbidden(observed) or _lost(observed) or _starting(observed)
    return (why or cause(Reason.READY)).condition(ConditionType.READY, status=why is None)


def _over(observed: ObservedSandbox, now: datetime) -> Cause | None:
    """Return why it accepts no runs whatever its pod says: as the spec says, by an earlier end, by its age."""
    sandbox, pod = observed.sandbox, observed.pod
    before = find(sandbox.status.conditions, ConditionType.READY)
    if before is not None and is_final([before]) and (pod is None or pod.deleting or observed.suspended):
        return Cause.of(before)
    if (expiry := lifetime.expiry(sandbox, now, suspends=observed.suspends)) is not None:
        return cause(expiry)
    return _why_suspended(observed) if observed.suspended else None


def _again(observed: ObservedSandbox) -> Cause | None:
    """Return why a new pod is tried: once, as the status remembers, and only if nothing has run in the sandbox."""
    pod, old = observed.pod, observed.sandbox.status
    if (allowed := allowed_anew(observed)) is not None and not is_final(old.conditions):
        return allowed
    fault = failures.runtime_fault(pod) if pod is not None and old.retried_pod in {None, pod.metadata.uid} else None
    if fault is None or observed.was_ready or is_final(old.conditions):
        return None
    return cause(Reason.START_RETRIED, fault)


def _lost(observed: ObservedSandbox) -> Cause | None:
    pod, was_ready = observed.pod, observed.was_ready
    end = failures.end_of(pod, was_ready=was_ready) if pod is not None else None
    if end is None and was_ready and (pod is None or pod.deleting):
        # Who deletes it for a reason says so first: a drain, the scheduler, a node that is given up.
        reported = failures.disruption(pod) if pod is not None else None
        return reported or cause(Reason.NODE_LOST, "its pod was deleted, and its files with it.")
    if end is None and was_ready and pod is not None and pod.started and not pod.ready:
        return cause(Reason.NODE_LOST, "its node does not report it as ready.")
    return end


def _starting(observed: ObservedSandbox) -> Cause | None:
    pod = observed.pod
    if pod is None:
        return no_pod(observed)
    kernel = kernel_isolated(observed)
    if kernel is not None and kernel.status == "False":
        return Cause.of(kernel)
    if pod.ready and not pod.deleting:
        pending = kernel is not None and kernel.reason == Reason.PROBE_PENDING
        return cause(Reason.STARTING, "its kernel is not known yet.") if pending else None
    stuck = failures.obstacle(pod)
    before = find(observed.sandbox.status.conditions, ConditionType.READY)
    if stuck is not None and before is not None and before.reason == stuck.reason == Reason.IMAGE_PULL_FAILED:
        # The kubelet's words alternate between the registry's answer and its own waiting: the first ones say most.
        return Cause(stuck.reason, before.message)
    if stuck is not None and observed.sandbox.status.volume_claim is not None:
        stuck = failures.workspace_lost(stuck) or stuck
    return stuck or cause(Reason.STARTING)


def suspended(observed: ObservedSandbox) -> Condition | None:
    """Return whether it is suspended, for one that is or was. As it turns false the idle clock starts again."""
    if observed.suspended:
        return _why_suspended(observed).condition(ConditionType.SUSPENDED, status=True)
    if find(observed.sandbox.status.conditions, ConditionType.SUSPENDED) is None:
        return None
    return cause(Reason.RESUMED).condition(ConditionType.SUSPENDED, status=False)


def expired(observed: ObservedSandbox, now: datetime) -> Condition:
    """Return whether its lifetime has ended."""
    reason = lifetime.expiry(observed.sandbox, now, suspends=observed.suspends)
    if reason is None:
        return cause(Reason.ALIVE).condition(ConditionType.EXPIRED, status=False)
    limits = observed.sandbox.spec.lifetime
    seconds = limits.ttl if reason == Reason.TTL_EXPIRED else limits.idle_timeout
    return Cause(reason, f"{reason.sentence[:-1]} ({seconds} s).").condition(ConditionType.EXPIRED, status=True)


def _start_time(observed: ObservedSandbox, conditions: list[Condition], now: datetime) -> datetime | None:
    if observed.suspended:
        return None
    begun = observed.sandbox.status.start_time
    if begun is not None or not is_true(conditions, ConditionType.READY):
        return begun
    since = observed.pod.condition("Ready") if observed.pod else None
    return now if since is None or since.status != "True" else since.last_transition_time or now


def _volume_claim(observed: ObservedSandbox, conditions: list[Condition]) -> str | None:
    if observed.persistent and is_true(conditions, ConditionType.READY):
        return names.volume_claim_name(observed.sandbox.metadata.name, observed.sandbox.metadata.uid)
    return observed.sandbox.status.volume_claim


def _retried_pod(observed: ObservedSandbox, ready: Condition | None) -> str | None:
    if ready is not None and ready.reason == Reason.START_RETRIED and observed.pod is not None:
        return observed.pod.metadata.uid
    begun = ready is None or ready.status == "True" or observed.suspended
    return None if begun else observed.sandbox.status.retried_pod


def _phase(observed: ObservedSandbox, conditions: list[Condition]) -> Phase:
    if is_final(conditions):
        return "Failed"
    if is_true(conditions, ConditionType.EXPIRED):
        return "Expired"
    if observed.suspended:
        return "Suspended"
    if is_true(conditions, ConditionType.READY):
        return "Ready" if observed.sandbox.spec.claim else "Warm"
    return "Pending"
