"""Tenants as SandboxTenant resources: a gateway asks for one, and the operator makes what it gets."""

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

from sandpod_api.conditions import ConditionType, Reason, find
from sandpod_api.types import SandboxTenant
from sandpod_gateway.backends.first_use import TenantState
from sandpod_gateway.backends.kubernetes.cluster import Cluster, translated
from sandpod_kube.errors import ConflictError
from sandpod_kube.follow import follow
from sandpod_kube.resources import TENANTS

_FINAL: Final = {Reason.NAMESPACE_TAKEN, Reason.NAME_TOO_LONG, Reason.TOO_MANY_TENANTS}


class SandboxTenants:
    """The resources of one namespace; implements `backends.first_use.TenantSource`."""

    def __init__(self, cluster: Callable[[], Cluster], namespace: str, silence: float) -> None:
        """Use that namespace; a watch without an event for `silence` seconds counts as dead."""
        self._cluster, self._namespace, self._silence = cluster, namespace, silence

    async def make(self, tenant: str) -> bool:
        """Ask for a tenant; see `TenantSource.make`."""
        body = {**TENANTS.header, "metadata": {"name": tenant}, "spec": {}}
        with translated("a tenant was made"):
            try:
                await self._cluster().client.create(TENANTS, body, self._namespace)
            except ConflictError:
                return False
        return True

    async def follow(self, use: Callable[[Mapping[str, TenantState]], None]) -> None:
        """Pass on all tenants; see `TenantSource.follow`."""
        with translated("tenants were watched"):
            client = self._cluster().client
            async with aclosing(follow(client, TENANTS, self._namespace, {}, silence=self._silence)) as found:
                async for manifests in found:
                    use({each["metadata"]["name"]: _state(each) for each in manifests})


def _state(manifest: dict[str, Any]) -> TenantState:
    try:
        status = SandboxTenant.model_validate(manifest).status
    except ValueError:  # of another version of the CRD
        return TenantState()
    ready = find(status.conditions, ConditionType.READY)
    return TenantState(status.namespace, ready is not None and ready.status == "False" and ready.reason in _FINAL)
