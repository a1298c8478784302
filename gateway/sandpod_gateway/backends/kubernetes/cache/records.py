"""What a Sandbox object means to the gateway: whether it can be claimed, is live, and its record for callers. Pure."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cachetools import LRUCache
from pydantic import ValidationError

from sandpod_api import names
from sandpod_api.conditions import Condition, ConditionType, find, is_true
from sandpod_api.types import Sandbox, SandboxPool, SandboxTemplate, parse_quantity
from sandpod_gateway.backends.base import PoolRecord, SandboxEvent, SandboxRecord, Status, TemplateInfo

_ENDED: Final = frozenset({"Failed", "Expired"})
_MAX_REASON: Final = 128  # characters of an Event's, as the API server has it
_MAX_MESSAGE: Final = 1024


def is_claimable(sandbox: Sandbox) -> bool:
    """Return whether it waits for a claim, started and whole."""
    return (
        sandbox.spec.claim is None
        and sandbox.metadata.labels.get(names.LABEL_STATE) == names.STATE_WARM
        and sandbox.metadata.deletion_timestamp is None
        and is_true(sandbox.status.conditions, ConditionType.READY)
    )


def is_live(sandbox: Sandbox) -> bool:
    """Return whether it is someone's and can still be used, now or soon."""
    return (
        sandbox.spec.claim is not None
        and sandbox.metadata.deletion_timestamp is None
        and status_of(sandbox) not in _ENDED
    )


def takes_pod(sandbox: Sandbox) -> bool:
    """Return whether it is someone's and has a pod or is to have one: a suspended one has none."""
    return is_live(sandbox) and sandbox.spec.operating_mode == "Running"


def status_of(sandbox: Sandbox) -> Status:
    """Return a claimed sandbox's status: by its conditions, and by the phase only where they say nothing of it."""
    if is_true(sandbox.status.conditions, ConditionType.EXPIRED) or sandbox.status.phase == "Expired":
        return "Expired"
    if sandbox.status.phase == "Failed":
        return "Failed"
    if sandbox.spec.operating_mode == "Suspended":
        return "Suspended"
    return "Ready" if is_true(sandbox.status.conditions, ConditionType.READY) else "Pending"


def blocking(sandbox: Sandbox) -> Condition | None:
    """Return the condition that says why the sandbox is not ready: Expired, else Ready."""
    conditions = sandbox.status.conditions
    if is_true(conditions, ConditionType.EXPIRED):
        return find(conditions, ConditionType.EXPIRED)
    return None if is_true(conditions, ConditionType.READY) else find(conditions, ConditionType.READY)


def to_record(sandbox: Sandbox) -> SandboxRecord | None:
    """Return what callers learn of a claimed sandbox; None for one that is not claimed."""
    claim = sandbox.spec.claim
    if claim is None:
        return None
    status = status_of(sandbox)
    why = None if status == "Ready" else blocking(sandbox)
    activity = last_activity(sandbox)
    suspended = find(sandbox.status.conditions, ConditionType.SUSPENDED)
    return SandboxRecord(
        name=sandbox.metadata.name,
        owner=claim.owner,
        session=claim.session,
        template=sandbox.spec.template_ref.name,
        network=sandbox.status.network or sandbox.spec.network,
        status=status,
        created=claim.time,
        ttl=sandbox.spec.lifetime.ttl,
        idle_timeout=sandbox.spec.lifetime.idle_timeout,
        image=sandbox.status.image,
        reason=why.reason if why else None,
        message=why.message or None if why else None,
        last_activity=activity,
        expires=sandbox.status.expires_at or _expiry(sandbox, claim.time, activity),
        persistent=sandbox.spec.workspace is not None and sandbox.spec.workspace.persistent,
        has_secrets=names.ANNOTATION_SECRETS in sandbox.metadata.annotations,
        refers_to_secrets=bool(claim.secrets),
        conditions=tuple(sandbox.status.conditions),
        metadata=_metadata(sandbox.metadata.annotations.get(names.ANNOTATION_METADATA, "")),
        resumed=suspended.last_transition_time if suspended is not None and suspended.status == "False" else None,
    )


def template_info(body: Mapping[str, Any]) -> TemplateInfo | None:
    """Return what callers learn of a template; None where it is none that this version understands."""
    try:
        template = SandboxTemplate.model_validate(body)
    except ValidationError:
        return None
    spec = template.spec
    return TemplateInfo(
        name=template.metadata.name,
        image=spec.image,
        languages=tuple(language.name for language in spec.languages),
        networks=(names.NETWORK_NONE, *(profile.name for profile in spec.network_profiles)),
        foreign=spec.runner == "Injected",
        workspace_max=workspace_max(template),
        persistent=spec.workspace.persistent or spec.workspace_limits.persistent,
        memory=int(parse_quantity(spec.resources.memory)),
        runtime_class=spec.runtime_class_name,
    )


def pool_record(body: Mapping[str, Any]) -> PoolRecord | None:
    """Return what administrators learn of a pool; None where it is none that this version understands."""
    try:
        pool = SandboxPool.model_validate(body)
    except ValidationError:
        return None
    return PoolRecord(
        name=pool.metadata.name,
        template=pool.spec.template_ref.name,
        replicas=_wanted(pool),
        existing=pool.status.replicas,
        ready=pool.status.ready_replicas,
        reason=pool.status.reason,
        conditions=tuple(pool.status.conditions),
        claims=pool.status.claims,
    )


def _wanted(pool: SandboxPool) -> int:
    """Return how many warm sandboxes a pool is to have: one that follows its claims says so itself."""
    if pool.spec.autoscale is None:
        return pool.spec.replicas
    wanted = pool.status.desired_replicas
    return pool.spec.autoscale.min_replicas if wanted is None else wanted


class Records:
    """Records of at most so many objects, each made once: who looks at a long list looks at it again and again."""

    def __init__(self, most: int) -> None:
        self._made: LRUCache[str, tuple[Sandbox, SandboxRecord | None]] = LRUCache(most)

    def of(self, sandboxes: Iterable[Sandbox]) -> list[SandboxRecord]:
        """Return what callers learn of the claimed ones, oldest first."""
        return sorted(filter(None, map(self._one, sandboxes)), key=lambda record: (record.created, record.name))

    def _one(self, sandbox: Sandbox) -> SandboxRecord | None:
        name = sandbox.metadata.name
        known = self._made.get(name)
        if known is None or known[0] is not sandbox:
            known = self._made[name] = (sandbox, to_record(sandbox))
        return known[1]


def events_selector(sandbox: Sandbox) -> str:
    """Return the field selector of a Sandbox's Events."""
    about = {"kind": "Sandbox", "name": sandbox.metadata.name, "uid": sandbox.metadata.uid}
    return ",".join(f"involvedObject.{field}={value}" for field, value in about.items())


def event_records(bodies: Iterable[Mapping[str, Any]]) -> tuple[SandboxEvent, ...]:
    """Return what callers learn of Events, oldest first."""
    return tuple(sorted(map(_event, bodies), key=lambda event: (event.time is not None, event.time)))


def _event(body: Mapping[str, Any]) -> SandboxEvent:
    """Return an Event with texts that are bounded: anybody may have written it."""
    time = body.get("lastTimestamp") or body.get("eventTime") or body.get("firstTimestamp")
    try:
        when = None if time is None else datetime.fromisoformat(str(time))
    except ValueError:
        when = None
    return SandboxEvent(
        time=when if when is None or when.tzinfo is not None else when.replace(tzinfo=UTC),
        reason=str(body.get("reason") or "")[:_MAX_REASON],
        message=str(body.get("message") or "")[:_MAX_MESSAGE],
        is_warning=body.get("type") == "Warning",
        count=count if isinstance(count := body.get("count"), int) and count > 0 else 1,
    )


def workspace_max(template: SandboxTemplate) -> int:
    """Return the largest workspace that a caller may ask for, bytes."""
    return int(parse_quantity(template.spec.workspace_limits.max_size or template.spec.workspace.size))


def last_activity(sandbox: Sandbox) -> datetime | None:
    """Return when the sandbox was last used."""
    times = [sandbox.status.last_activity_time, sandbox.metadata.time_in(names.ANNOTATION_LAST_ACTIVITY)]
    return max((time for time in times if time is not None), default=None)


def _metadata(text: str) -> tuple[tuple[str, str], ...]:
    try:
        found = json.loads(text or "{}")
        return tuple((str(name), str(value)) for name, value in found.items())
    except (ValueError, AttributeError):
        return ()  # written by someone else


def _expiry(sandbox: Sandbox, claimed: datetime, activity: datetime | None) -> datetime:
    end = claimed + timedelta(seconds=sandbox.spec.lifetime.ttl)
    used = activity or claimed
    busy = sandbox.metadata.time_in(names.ANNOTATION_BUSY_UNTIL) or used
    return min(end, max(used, min(busy, end)) + timedelta(seconds=sandbox.spec.lifetime.idle_timeout))
