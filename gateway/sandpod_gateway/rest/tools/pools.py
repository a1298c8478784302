"""Pools of warm sandboxes, for administrators."""

from typing import Annotated, Final

from pydantic import Field

from sandpod_api.base import rfc3339
from sandpod_gateway.api.account_results import PoolClaims, PoolCondition, PoolInfo, PoolList
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.backends.base import Backend, PoolRecord
from sandpod_gateway.backends.refusals import no_such_pool
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.toolbox import Toolbox

MAX_REPLICAS: Final = 10_000

Pool = Annotated[str, Field(description="`pool` of a pool.")]
Replicas = Annotated[int, Field(ge=0, le=MAX_REPLICAS, description="Warm sandboxes to keep.")]
Tenant = Annotated[
    str | None, Field(description="Whose pools, for administrators of all tenants; default: the default tenant's.")
]


def register(toolbox: Toolbox, backend: Backend) -> None:
    """Add the operations."""

    async def infos(owner: str) -> list[PoolInfo]:
        return [_info(pool) for pool in await backend.pools(owner)]

    @toolbox.tool("List pools", toolset="account", effect="read", admin=True)
    async def list_pools(*, tenant: Tenant = None) -> PoolList:
        """List the pools of a tenant: what they have of warm sandboxes, and why they are not full."""
        return PoolList(pools=await infos(_owner(tenant)))

    @toolbox.tool("Scale a pool", toolset="account", effect="write", admin=True)
    async def scale_pool(*, pool: Pool, replicas: Replicas, tenant: Tenant = None) -> PoolInfo:
        """Change how many warm sandboxes a pool keeps."""
        owner = _owner(tenant)
        await backend.scale_pool(owner, pool, replicas)
        for each in await infos(owner):
            if each.pool == pool:
                return each
        raise no_such_pool(pool)


def _owner(tenant: str | None) -> str:
    """Return nobody of the tenant whose pools are wanted."""
    own = current_caller().tenant
    if own and tenant not in {None, own}:
        message, step = "That tenant is not yours.", "Leave tenant out."
        raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)
    return owner_of(tenant or own, "")


def _info(pool: PoolRecord) -> PoolInfo:
    claims = pool.claims
    counted = claims.warm + claims.cold
    return PoolInfo(
        pool=pool.name,
        template=pool.template,
        replicas=pool.replicas,
        existing=pool.existing,
        ready=pool.ready,
        reason=pool.reason,
        conditions=[
            PoolCondition(**each.model_dump(include={"type", "status", "reason", "message"}))
            for each in pool.conditions
        ],
        claims=PoolClaims(
            warm=claims.warm,
            cold=claims.cold,
            hit_rate=round(claims.warm / counted, 4) if counted else None,
            since=None if claims.since is None else rfc3339(claims.since),
        ),
    )
