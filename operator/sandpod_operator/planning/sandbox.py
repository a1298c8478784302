"""Decides what to do about a Sandbox: its pod, its status, its end."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from sandpod_api import names
from sandpod_api.base import ApiModel
from sandpod_api.conditions import ConditionType, Reason, find, is_true
from sandpod_api.types import Sandbox, SandboxStatus
from sandpod_kube.resources import PODS, POLICIES, SANDBOXES, VOLUME_CLAIMS
from sandpod_operator.manifests.children import build_volume_claim
from sandpod_operator.manifests.network_policies import build_deny_all
from sandpod_operator.manifests.pod import build_pod, find_profile, workspace_of
from sandpod_operator.model.actions import Action, Apply, Create, Delete, Patch, PatchStatus, Plan
from sandpod_operator.model.observed import ObservedSandbox
from sandpod_operator.planning.events import idle_suspended, pod_created, sandbox_events
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.status import lifetime
from sandpod_operator.status.network import to_relabel
from sandpod_operator.status.sandbox import compute_status, is_final, is_over

_PASSING = frozenset({Reason.POD_PENDING, Reason.STARTING})
_TRIED_ANEW = frozenset({Reason.START_RETRIED, Reason.OPEN_NETWORK_ALLOWED})


def plan_sandbox(observed: ObservedSandbox, settings: OperatorSettings, now: datetime) -> Plan:
    """Decide about one Sandbox at this time, in whole seconds."""
    sandbox = observed.sandbox
    if sandbox.metadata.deletion_timestamp is not None:
        return Plan()  # Its pod goes by owner reference.
    status = compute_status(observed, now)
    gone_at = _delete_at(status, settings)
    if gone_at is not None and gone_at <= now:
        return Plan(actions=(delete_sandbox(sandbox),))
    idle = lifetime.suspend_at(sandbox, now, suspends=observed.suspends)
    if idle is not None and idle <= now and not is_over(status.conditions):
        # Nothing but that, for what was seen: the answer wakes the next pass, which ends the pod.
        suspend = Patch(SANDBOXES, sandbox.metadata, spec={"operatingMode": "Suspended"})
        return Plan(actions=(suspend, idle_suspended(sandbox, status.expires_at)))
    # A status is written before the pod goes, so that whoever loses the pod can read why.
    actions = (
        *_make_pod(observed, status, settings, now),
        *_status_actions(sandbox, status, settings, now),
        *_change_pod(observed, status, settings, now),
    )
    return Plan(actions=actions, due=_due(observed, status, settings, now))


def _change_pod(
    observed: ObservedSandbox, status: SandboxStatus, settings: OperatorSettings, now: datetime
) -> Iterator[Action]:
    if (pod := observed.pod) is None:
        return
    if (profile := to_relabel(observed)) is not None and not is_over(status.conditions):
        yield Patch(PODS, pod.metadata, labels={names.LABEL_NETWORK: profile})
    at = _pod_delete_at(observed, status, settings, now)
    if not pod.deleting and at is not None and at <= now:
        yield Delete(PODS, pod.metadata)


def wants_pod(observed: ObservedSandbox, now: datetime) -> bool:
    """Return whether the plan would create a pod, if there is a place for it."""
    return observed.pod is None and _may_make_pod(observed, compute_status(observed, now), now)


def _may_make_pod(observed: ObservedSandbox, status: SandboxStatus, now: datetime) -> bool:
    sandbox, template = observed.sandbox, observed.template
    if observed.pod is not None or observed.name_taken or observed.opened is not None or template is None:
        return False
    if is_over(status.conditions) or sandbox.metadata.deletion_timestamp is not None:
        return False
    waits = observed.refusal is not None and observed.refusal.until > now
    return not observed.suspended and not waits and find_profile(sandbox, template) is not None


def _make_pod(
    observed: ObservedSandbox, status: SandboxStatus, settings: OperatorSettings, now: datetime
) -> Iterator[Action]:
    sandbox, template = observed.sandbox, observed.template
    profile = find_profile(sandbox, template) if template is not None else None
    if template is None or profile is None or not _may_make_pod(observed, status, now):
        return
    if not observed.closed:
        # First of all, and a failure here ends the pass: no pod exists in a namespace that is not closed.
        yield Apply(POLICIES, build_deny_all(sandbox.metadata.namespace))
    workspace = workspace_of(sandbox, template)
    if workspace.persistent:
        yield Create(VOLUME_CLAIMS, build_volume_claim(sandbox, workspace), may_exist=True)
    yield Create(PODS, build_pod(sandbox, template, profile, settings, user_namespaces=observed.user_namespaces))
    yield pod_created(sandbox, sandbox.metadata.name)


def _pod_delete_at(
    observed: ObservedSandbox, status: SandboxStatus, settings: OperatorSettings, now: datetime
) -> datetime | None:
    """Return when an existing pod is to be deleted, or None while it may stay."""
    if is_final(status.conditions):
        unreachable = status.reason == Reason.NODE_LOST and observed.pod is not None and not observed.pod.ended
        # Whether an unreachable node's pods are lost is for Kubernetes to decide; it deletes them after five minutes.
        return None if unreachable else _since(status, ConditionType.READY, settings.failed_pod_grace)
    over = is_true(status.conditions, ConditionType.EXPIRED) or observed.suspended
    return now if over or status.reason in _TRIED_ANEW else None


def _since(status: SandboxStatus, kind: ConditionType, seconds: float) -> datetime | None:
    condition = find(status.conditions, kind)
    start = condition.last_transition_time if condition is not None else None
    return None if start is None else start + timedelta(seconds=seconds)


def _delete_at(status: SandboxStatus, settings: OperatorSettings) -> datetime | None:
    """Return when the Sandbox itself is to be deleted: its callers have had long enough to read why."""
    ended = [ConditionType.READY] if is_final(status.conditions) else []
    ended += [ConditionType.EXPIRED] if is_true(status.conditions, ConditionType.EXPIRED) else []
    return min(filter(None, (_since(status, kind, settings.retention) for kind in ended)), default=None)


def delete_sandbox(sandbox: Sandbox) -> Delete:
    """Return the deletion of a Sandbox as it was seen: one that was claimed or used since is left alone."""
    return Delete(SANDBOXES, sandbox.metadata, unchanged=True)


def _status_actions(
    sandbox: Sandbox, status: SandboxStatus, settings: OperatorSettings, now: datetime
) -> Iterator[Action]:
    if status != sandbox.status and not _passing(sandbox, status, settings, now):
        yield PatchStatus(SANDBOXES, sandbox.metadata, whole_status(status))
        yield from sandbox_events(sandbox, status)


def _passing(sandbox: Sandbox, status: SandboxStatus, settings: OperatorSettings, now: datetime) -> bool:
    """Return whether a new Sandbox is only starting: writing that status would last a second."""
    end = _status_due(sandbox, settings)
    return sandbox.status.phase is None and status.reason in _PASSING and end is not None and now < end


def _status_due(sandbox: Sandbox, settings: OperatorSettings) -> datetime | None:
    created = sandbox.metadata.creation_timestamp
    return None if created is None else created + timedelta(seconds=settings.status_delay)


def whole_status(status: ApiModel) -> dict[str, Any]:
    """Return a status as a merge patch that leaves nothing of an older one: absent fields are null."""
    return status.model_dump(mode="json", by_alias=True)


def _due(
    observed: ObservedSandbox, status: SandboxStatus, settings: OperatorSettings, now: datetime
) -> datetime | None:
    times = [_delete_at(status, settings)]
    if observed.pod is not None:
        times.append(_pod_delete_at(observed, status, settings, now))
    if not is_over(status.conditions):
        times.append(status.expires_at)
        ends = (lifetime.expires_at, lifetime.suspend_at)
        times += [end(observed.sandbox, now, suspends=observed.suspends) for end in ends]
    if observed.refusal is not None and observed.pod is None:
        times.append(observed.refusal.until)
    if _passing(observed.sandbox, status, settings, now):
        times.append(_status_due(observed.sandbox, settings))
    if observed.name_taken:
        times.append(now + timedelta(seconds=settings.refused_retry))
    return earliest(times, now)


def earliest(times: Iterable[datetime | None], now: datetime) -> datetime | None:
    """Return the first of some times that is still to come, if any."""
    return min((time for time in times if time is not None and time > now), default=None)
