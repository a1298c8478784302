"""Whether a tenant that is asked for on first use gets a namespace, and which."""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from sandpod_api.conditions import Condition, ConditionType, Reason, find, merge
from sandpod_api.names import MAX_LABEL
from sandpod_api.types import SandboxTenant, SandboxTenantStatus
from sandpod_operator.settings import OperatorSettings


class Refused(NamedTuple):
    """Why it gets none, or not all that belongs in it."""

    reason: Reason
    message: str


def plan_tenant(tenant: SandboxTenant, tenants: Iterable[SandboxTenant], settings: OperatorSettings) -> str | Refused:
    """Return the name of a tenant's namespace, or why it gets none; `tenants` are all of them.

    A tenant that has one keeps it, however many there may be.
    """
    name = f"{settings.tenant_prefix}{tenant.metadata.name}"
    if len(name) > MAX_LABEL:
        message = f"The name {name} would have {len(name)} characters, and a namespace's has {MAX_LABEL} at the most."
        return Refused(Reason.NAME_TOO_LONG, message)
    if name in {*settings.namespaces, settings.namespace}:
        return taken(name)
    before = sum(_turn(each) < _turn(tenant) for each in tenants)
    if tenant.status.namespace is None and before >= settings.max_tenants:
        message = f"There may be {settings.max_tenants} tenants that are made on first use."
        return Refused(Reason.TOO_MANY_TENANTS, message)
    return name


def taken(namespace: str) -> Refused:
    """Return the refusal where a namespace is not the tenant's own."""
    return Refused(Reason.NAMESPACE_TAKEN, f"There is a namespace {namespace}, and it is not this tenant's.")


def _turn(tenant: SandboxTenant) -> tuple[bool, float, str]:
    created = tenant.metadata.creation_timestamp
    return tenant.status.namespace is None, created.timestamp() if created else 0.0, tenant.metadata.name


def is_provisioned(tenant: SandboxTenant, revision: str) -> bool:
    """Return whether a tenant's status says that it has all that there is for it now."""
    ready = find(tenant.status.conditions, ConditionType.READY)
    current = tenant.status.namespace is not None and tenant.status.revision == revision
    return current and ready is not None and ready.status == "True"


def provisioned(tenant: SandboxTenant, namespace: str, revision: str, now: datetime) -> SandboxTenantStatus:
    """Return the status of a tenant that has all."""
    ready = Condition(type=ConditionType.READY, status="True", reason=Reason.PROVISIONED)
    return SandboxTenantStatus(namespace=namespace, revision=revision, conditions=_conditions(tenant, ready, now))


def refused(tenant: SandboxTenant, why: Refused, now: datetime) -> SandboxTenantStatus:
    """Return the status of a tenant that gets no namespace, or that has one in which something is missing."""
    keeps = tenant.status if why.reason == Reason.PROVISIONING_FAILED else SandboxTenantStatus()
    ready = Condition(type=ConditionType.READY, status="False", reason=why.reason, message=why.message)
    return keeps.model_copy(update={"conditions": _conditions(tenant, ready, now)})


def _conditions(tenant: SandboxTenant, ready: Condition, now: datetime) -> list[Condition]:
    return merge(tenant.status.conditions, [ready], now, tenant.metadata.generation)
