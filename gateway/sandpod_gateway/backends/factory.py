"""The one place that knows which backends there are.

What a backend needs is imported only when that one is chosen: a laptop has no Kubernetes client.
"""

from typing import Literal

from sandpod_gateway.backends.base import Backend
from sandpod_gateway.backends.first_use import FirstUse
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.backends.tenants import TenantBackend

BackendKind = Literal["kubernetes", "local"]


def create_backend(
    kind: BackendKind, *, local: LocalSettings | None = None, kubernetes: KubernetesSettings | None = None
) -> Backend:
    """Return the backend of that kind, not started, for all tenants; with default settings where none are given."""
    match kind:
        case "kubernetes":
            from sandpod_gateway.backends.kubernetes.backend import KubernetesBackend  # noqa: PLC0415 - an optional extra

            settings = kubernetes or KubernetesSettings()

            def within(namespace: str) -> Backend:
                return KubernetesBackend(settings.model_copy(update={"namespace": namespace}))

            default, first_use = KubernetesBackend(settings), None
            tenants = {tenant: within(namespace) for tenant, namespace in settings.tenants.items()}
            if (source := default.tenant_source()) is not None:
                timeout, limit = settings.first_use_timeout, settings.first_use_limit
                first_use = FirstUse(source, within, timeout=timeout, limit=limit)
            return TenantBackend(default, tenants, required=settings.tenant_required, first_use=first_use)
        case "local":
            from sandpod_gateway.backends.local.backend import LocalBackend  # noqa: PLC0415 - Linux's own modules

            return TenantBackend(LocalBackend(local or LocalSettings()))
