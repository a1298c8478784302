"""The templates and pools of the namespace: what callers may choose from."""

from sandpod_api import names
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import MAX_TEMPLATES, PoolRecord, TemplateInfo
from sandpod_gateway.backends.kubernetes.cache.records import pool_record, template_info
from sandpod_gateway.backends.kubernetes.cluster import translated
from sandpod_gateway.backends.kubernetes.stores import Stores
from sandpod_gateway.backends.refusals import no_such_pool
from sandpod_gateway.errors import SandpodError
from sandpod_kube.errors import NotFoundError


class Catalog(Stores):
    """A part of the Kubernetes backend; see `base.Backend` for each of them."""

    async def templates(self, owner: str) -> tuple[TemplateInfo, ...]:  # noqa: ARG002 - the same for all
        """Return the templates of the namespace; ones that this version does not understand are left out."""
        with translated("the templates were listed"):
            page = await self._cluster().list_page(names.TEMPLATES, {"limit": str(MAX_TEMPLATES)})
        return tuple(filter(None, map(template_info, page.get("items", []))))

    async def pools(self, owner: str) -> tuple[PoolRecord, ...]:  # noqa: ARG002 - the same for all
        """Return the pools of the namespace; ones that this version does not understand are left out."""
        with translated("the pools were listed"):
            page = await self._cluster().list_page(names.POOLS, {"limit": str(MAX_TEMPLATES)})
        return tuple(filter(None, map(pool_record, page.get("items", []))))

    async def scale_pool(self, owner: str, name: str, replicas: int) -> None:  # noqa: ARG002 - the same for all
        """Write the pool's scale, and nothing else of it; see `base.Backend.scale_pool`."""
        if not self._settings.scale_pools:
            message, step = "Pools are not scaled by callers.", "Use kubectl, or set kubernetes.scale_pools."
            raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)
        if not names.is_dns_label(name):
            raise no_such_pool(name)
        with translated("a pool was scaled"):
            try:
                change = {"spec": {"replicas": replicas}}
                await self._cluster().merge_patch(names.POOLS, f"{name}/scale", change)
            except NotFoundError as error:
                raise no_such_pool(name) from error
