"""Decides what to do about a Sandbox: its pod, its status, its end.

An Event is made where the status changes, so that a restart of the operator repeats none.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

from sandpod_api import names
from sandpod_api.base import ApiModel, rfc3339
from sandpod_api.conditions import Condition, ConditionType, Reason, find, is_true
from sandpod_api.templates import NetworkProfile, SandboxTemplate
from sandpod_api.types import Sandbox, SandboxPoolStatus, SandboxStatus
from sandpod_kube.resources import PODS, POLICIES, SANDBOXES, VOLUME_CLAIMS
from sandpod_operator.manifests.pod import build_pod, build_volume_claim, find_profile, workspace_of
from sandpod_operator.model.actions import Action, Apply, Create, Delete, Emit, Patch, PatchStatus, Plan, Resize
from sandpod_operator.model.observed import ObservedSandbox
from sandpod_operator.planning.network_policies import build_deny_all
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.status import failures, lifetime
from sandpod_operator.status.network import to_relabel
from sandpod_operator.status.requests import to_resize
from sandpod_operator.status.sandbox import compute_status, is_final, is_over

_PASSING = frozenset({Reason.POD_PENDING, Reason.STARTING})
# Reasons for not being ready that need nothing done.
_QUIET = _PASSING | {Reason.SUSPENDED, Reason.TTL_EXPIRED, Reason.IDLE_TIMEOUT}
_Status = SandboxStatus | SandboxPoolStatus
_TRIED_ANEW = frozenset({Reason.START_RETRIED, Reason.OPEN_NETWORK_ALLOWED})


def plan_sandbox(observed: ObservedSandbox, settings: OperatorSettings, now: datetime) -> Plan:
    """Decide about one Sandbox at this time, in whole seconds."""
    if observed.sandbox.metadata.deletion_timestamp is not None:
        return Plan()  # Its pod goes by owner reference.
    return _Pass(observed, settings, now).plan()


def wants_pod(observed: ObservedSandbox, settings: OperatorSettings, now: datetime) -> bool:
    """Return whether the plan would create a pod, if there is a place for it."""
    gone = observed.sandbox.metadata.deletion_timestamp is not None
    return observed.pod is None and not gone and _Pass(observed, settings, now).pod_parts() is not None


def delete_sandbox(sandbox: Sandbox) -> Delete:
    """Return the deletion of a Sandbox as it was seen: one that was claimed or used since is left alone."""
    return Delete(SANDBOXES, sandbox.metadata, unchanged=True)


def whole_status(status: ApiModel) -> dict[str, Any]:
    """Return a status as a merge patch that leaves nothing of an older one: absent fields are null."""
    return status.model_dump(mode="json", by_alias=True)


def earliest(times: Iterable[datetime | None], now: datetime) -> datetime | None:
    """Return the first of some times that is still to come, if any."""
    return min((time for time in times if time is not None and time > now), default=None)


def changed(new: _Status, old: _Status, kind: ConditionType, what: str) -> Condition | None:
    """Return the new condition of that type; None if there is none or its `what`, such as reason, is the same."""
    now, was = find(new.conditions, kind), find(old.conditions, kind)
    return now if was is None or now is None or getattr(now, what) != getattr(was, what) else None


class _Pass:
    def __init__(self, observed: ObservedSandbox, settings: OperatorSettings, now: datetime) -> None:
        self._observed, self._settings, self._now = observed, settings, now
        self._sandbox, self._pod = observed.sandbox, observed.pod
        self._status = compute_status(observed, now)
        self._over = is_over(self._status.conditions)

    def plan(self) -> Plan:
        """Return what to do."""
        gone_at = self._delete_at()
        if gone_at is not None and gone_at <= self._now:
            return Plan(actions=(delete_sandbox(self._sandbox),))
        if self._status.reason is not None and self._keeps_files():
            ready = find(self._status.conditions, ConditionType.READY)
            why = ready.message.rstrip(".") if ready is not None else ""
            text = f"{why}. The files of its persistent workspace are kept: the next call resumes it."
            return Plan(actions=(self._suspend(), self._emit(self._status.reason, text, "Warning")))
        idle = lifetime.suspend_at(self._sandbox, self._now, suspends=self._observed.suspends)
        if idle is not None and idle <= self._now and not self._over:
            # Nothing but that, for what was seen: the answer wakes the next pass, which ends the pod.
            end, limit = self._status.expires_at, self._sandbox.spec.lifetime.idle_timeout
            until = f" until {rfc3339(end)}, when its ttl ends" if end is not None else ""
            text = f"Idle for {limit} s, so it is suspended. Its files are kept{until}."
            return Plan(actions=(self._suspend(), self._emit(Reason.IDLE_TIMEOUT, text)))
        if (more := to_resize(self._observed, self._now)) is not None and self._pod is not None and not self._over:
            # As above: the answer, or a refusal, is part of the next status.
            return Plan(actions=(Resize(PODS, self._pod.metadata, names.CONTAINER, more),), due=self._due())
        # A status is written before the pod goes, so that whoever loses the pod can read why.
        return Plan(actions=(*self._make_pod(), *self._write_status(), *self._change_pod()), due=self._due())

    def _keeps_files(self) -> bool:
        """Return whether nothing but the pod of a sandbox that works has ended, and its files are on a volume."""
        sandbox, new = self._sandbox, self._status
        ends = is_final(new.conditions) and not is_over(sandbox.status.conditions)
        lives = sandbox.spec.operating_mode == "Running" and not is_true(new.conditions, ConditionType.EXPIRED)
        kept = self._observed.persistent and sandbox.status.volume_claim is not None
        return ends and lives and kept and new.reason in failures.OF_THE_POD

    def _suspend(self) -> Patch:
        return Patch(SANDBOXES, self._sandbox.metadata, spec={"operatingMode": "Suspended"})

    def _emit(self, reason: str, text: str, kind: Literal["Normal", "Warning"] = "Normal") -> Emit:
        return Emit(SANDBOXES, self._sandbox.metadata, reason, text, kind)

    def pod_parts(self) -> tuple[SandboxTemplate, NetworkProfile] | None:
        """Return what a pod is made from, if nothing but a full quota or the API server can prevent one now."""
        observed, refusal, template = self._observed, self._observed.refusal, self._observed.template
        if self._pod is not None or observed.name_taken or observed.opened is not None or template is None:
            return None
        waits = refusal is not None and refusal.until > self._now
        profile = find_profile(self._sandbox, template)
        return None if self._over or observed.suspended or waits or profile is None else (template, profile)

    def _make_pod(self) -> Iterator[Action]:
        if (parts := self.pod_parts()) is None:
            return
        sandbox, (template, profile) = self._sandbox, parts
        if not self._observed.closed:
            # First of all, and a failure here ends the pass: no pod exists in a namespace that is not closed.
            yield Apply(POLICIES, build_deny_all(sandbox.metadata.namespace))
        workspace = workspace_of(sandbox, template)
        # One that held files and is gone is not replaced: an empty one would pass for them.
        if workspace.persistent and sandbox.status.volume_claim is None:
            yield Create(VOLUME_CLAIMS, build_volume_claim(sandbox, workspace), may_exist=True)
        own_users = self._observed.user_namespaces
        yield Create(PODS, build_pod(sandbox, template, profile, self._settings, user_namespaces=own_users))
        yield Emit(SANDBOXES, sandbox.metadata, "PodCreated", f"Created pod {sandbox.metadata.name}.")

    def _write_status(self) -> Iterator[Action]:
        if self._status != self._sandbox.status and not self._passing():
            yield PatchStatus(SANDBOXES, self._sandbox.metadata, whole_status(self._status))
            yield from self._events()

    def _events(self) -> Iterator[Emit]:
        sandbox, new, old = self._sandbox, self._status, self._sandbox.status
        emit, differs = partial(Emit, SANDBOXES, sandbox.metadata), partial(changed, new, old)
        if None not in {old.network, new.network} and old.network != new.network:
            yield emit("NetworkChanged", f"Network profile {new.network!r} has replaced {old.network!r}.")
        network = differs(ConditionType.NETWORK_APPLIED, "message")
        if network is not None and network.status == "False" and network.reason != Reason.APPLYING:
            yield emit(network.reason, network.message, "Warning")
        if is_true(new.conditions, ConditionType.READY) and not is_true(old.conditions, ConditionType.READY):
            seconds, resumed = lifetime.start_seconds(sandbox, new)
            took = "" if seconds is None else f", {round(seconds)} s after it was {'resumed' if resumed else 'created'}"
            yield emit("Ready", f"{new.pod_name} accepts runs on {new.node_name}{took}.")
        if sandbox.spec.claim is not None and old.phase == "Warm":
            until = f" and ends at {rfc3339(new.expires_at)} unless it is used before" if new.expires_at else ""
            yield emit("Claimed", f"It was claimed from its pool{until}.")
        if (suspended := differs(ConditionType.SUSPENDED, "status")) is not None:
            yield emit(suspended.reason, suspended.message)
        trouble = differs(ConditionType.READY, "reason")
        if trouble is not None and trouble.status == "False" and trouble.reason not in _QUIET:
            yield emit(trouble.reason, trouble.message, "Warning")
        expired = differs(ConditionType.EXPIRED, "status")
        if expired is not None and expired.status == "True":
            yield emit(expired.reason, expired.message)

    def _change_pod(self) -> Iterator[Action]:
        if self._pod is None:
            return
        if (profile := to_relabel(self._observed)) is not None and not self._over:
            yield Patch(PODS, self._pod.metadata, labels={names.LABEL_NETWORK: profile})
        at = self._pod_delete_at()
        if not self._pod.deleting and at is not None and at <= self._now:
            yield Delete(PODS, self._pod.metadata)

    def _pod_delete_at(self) -> datetime | None:
        """Return when an existing pod is to be deleted, or None while it may stay."""
        if is_final(self._status.conditions):
            # Whether an unreachable node's pods are lost is for Kubernetes to decide: it deletes them in five minutes.
            unreachable = self._status.reason == Reason.NODE_LOST and self._pod is not None and not self._pod.ended
            return None if unreachable else self._since(ConditionType.READY, self._settings.failed_pod_grace)
        ends = is_true(self._status.conditions, ConditionType.EXPIRED) or self._observed.suspended
        return self._now if ends or self._status.reason in _TRIED_ANEW else None

    def _delete_at(self) -> datetime | None:
        """Return when the Sandbox itself is to be deleted: its callers have had long enough to read why."""
        ended = [ConditionType.READY] if is_final(self._status.conditions) else []
        ended += [ConditionType.EXPIRED] if is_true(self._status.conditions, ConditionType.EXPIRED) else []
        return min(filter(None, (self._since(kind, self._settings.retention) for kind in ended)), default=None)

    def _since(self, kind: ConditionType, seconds: float) -> datetime | None:
        condition = find(self._status.conditions, kind)
        start = condition.last_transition_time if condition is not None else None
        return None if start is None else start + timedelta(seconds=seconds)

    def _passing(self) -> bool:
        """Return whether a new Sandbox is only starting: writing that status would last a second."""
        end = self._status_due()
        starting = self._sandbox.status.phase is None and self._status.reason in _PASSING
        return starting and end is not None and self._now < end

    def _status_due(self) -> datetime | None:
        created = self._sandbox.metadata.creation_timestamp
        return None if created is None else created + timedelta(seconds=self._settings.status_delay)

    def _due(self) -> datetime | None:
        observed, sandbox, now = self._observed, self._sandbox, self._now
        times = [self._delete_at(), self._pod_delete_at() if self._pod is not None else None]
        if not self._over:
            times.append(self._status.expires_at)
            times.append(lifetime.expires_at(sandbox, now, suspends=observed.suspends))
            times.append(lifetime.suspend_at(sandbox, now, suspends=observed.suspends))
        if observed.refusal is not None and self._pod is None:
            times.append(observed.refusal.until)
        if observed.resize_refusal is not None:
            times.append(observed.resize_refusal.until)
        if self._passing():
            times.append(self._status_due())
        if observed.name_taken:
            times.append(now + timedelta(seconds=self._settings.refused_retry))
        return earliest(times, now)
