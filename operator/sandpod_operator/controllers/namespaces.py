"""Which namespaces the operator manages: those of its settings, and those of tenants that were made on first use."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from sandpod_api.types import SandboxTenant
from sandpod_kube.client import KubeClient
from sandpod_kube.errors import ClusterError, DeniedError, NotFoundError
from sandpod_kube.resources import POOLS, SANDBOXES, TEMPLATES, TENANTS
from sandpod_operator.settings import OperatorSettings

_log = logging.getLogger(__name__)


class Found(NamedTuple):
    """What namespaces can be read."""

    usable: tuple[str, ...] = ()
    trouble: str | None = None  # why the cluster can't be used, with what to do about it
    left_out: tuple[str, ...] = ()


class NamespacesChangedError(Exception):
    """Watches and all that is known are of other namespaces than there are now."""


def parse_tenants(manifests: Sequence[dict[str, Any]]) -> list[SandboxTenant]:
    """Return the tenants; what does not fit the CRD of this version is left out."""
    found = []
    for manifest in manifests:
        try:
            found.append(SandboxTenant.model_validate(manifest))
        except ValueError as error:
            name = manifest["metadata"]["name"]
            _log.warning("SandboxTenant %s can't be read and is left alone: %s", name, str(error)[:500])
    return found


async def find_namespaces(cluster: KubeClient, settings: OperatorSettings) -> Found:
    """Return the namespaces of the settings and of all tenants that can be read now."""
    wanted = list(settings.namespaces)
    if settings.tenant_manifests is not None:
        try:
            tenants = parse_tenants([each async for each in cluster.pages(TENANTS, settings.namespace)])
        except ClusterError as error:
            return Found(trouble=_explained(error, TENANTS.plural, settings.namespace))
        wanted += sorted(each.status.namespace for each in tenants if each.status.namespace)
    return await find_usable(cluster, tuple(dict.fromkeys(wanted)))


async def find_usable(cluster: KubeClient, namespaces: Sequence[str]) -> Found:
    """Return those of the namespaces that can be read.

    One namespace that is gone, and its Role with it, is no reason to leave the others alone.
    """
    usable, left_out, denied = [], [], None
    for namespace in namespaces:
        try:
            for resource in (SANDBOXES, TEMPLATES, POOLS):
                await cluster.list_page(resource, namespace, {"limit": "1"})
            usable.append(namespace)
        except DeniedError as error:
            left_out.append(namespace)
            denied = _explained(error, resource.plural, namespace)
        except ClusterError as error:
            return Found(trouble=_explained(error, resource.plural, namespace))
    return Found(tuple(usable), None if usable else denied, tuple(left_out))


def _explained(error: ClusterError, plural: str, namespace: str) -> str:
    if isinstance(error, NotFoundError):
        return f"the cluster does not have the resource {plural}; install the chart's CRDs first"
    if isinstance(error, DeniedError):
        return f"not allowed to read {plural} in {namespace}: {error.message}; install the chart's Role"
    return f"{error}; check that the cluster runs and that KUBECONFIG is right"
