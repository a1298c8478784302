"""Sandboxes that are objects alone, Ready by word, and gateways' backends that claim them. No operator looks on.

Called by `test_claims.py` and by the bench of scale: no pod is needed, so that thousands of them cost seconds.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.backends.kubernetes import cluster as cluster_module
from sandpod_gateway.backends.kubernetes.backend import KubernetesBackend
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError
from sandpod_kube.resources import SANDBOXES

TEMPLATE = "default"
WRITERS = 16  # requests at once while sandboxes are made


class Namespace:
    """A namespace whose Sandboxes are what a test says."""

    def __init__(self, api: cluster_module.Cluster, name: str) -> None:
        self.api = api
        self.name = name

    async def make_warm(self, count: int) -> None:
        """Make that many warm sandboxes, Ready by word alone."""
        slots = asyncio.Semaphore(WRITERS)

        async def make(number: int) -> None:
            async with slots:
                name = f"warm-{number:04d}"
                labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_STATE: names.STATE_WARM}
                await self.api.create(
                    names.SANDBOXES,
                    {
                        "apiVersion": names.API_VERSION,
                        "kind": "Sandbox",
                        "metadata": {"name": name, "labels": labels},
                        "spec": {"templateRef": {"name": TEMPLATE}},
                    },
                )
                await self.set_ready(name, "True", "Ready")

        await asyncio.gather(*(make(number) for number in range(count)))

    async def set_ready(self, name: str, status: str, reason: str, message: str = "") -> None:
        """Write the Ready condition, as the operator would."""
        time = rfc3339(datetime.now(UTC))
        condition = {"type": "Ready", "status": status, "reason": reason, "message": message}
        condition |= {"observedGeneration": 1, "lastTransitionTime": time}  # type: ignore[dict-item]
        await self.api.client.patch_status(SANDBOXES, self.api.namespace, name, {"conditions": [condition]})

    async def all(self) -> list[dict[str, Any]]:
        """Return all Sandboxes."""
        page = await self.api.list_page(names.SANDBOXES, {})
        items: list[dict[str, Any]] = page["items"]
        return items

    async def made_on_demand(self) -> str | None:
        """Return the name of a claimed sandbox that has no status yet."""
        waiting = (o for o in await self.all() if "claim" in o["spec"] and not o.get("status"))
        return next((o["metadata"]["name"] for o in waiting), None)


@asynccontextmanager
async def gateways(namespace: Namespace, count: int, **settings: Any) -> AsyncIterator[list[KubernetesBackend]]:
    """Give backends that share nothing but the API server."""
    unlimited = {"max_sandboxes": 10_000, "max_sandboxes_per_owner": 10_000, "warm_streams": 0}
    async with AsyncExitStack() as stack:
        backends = []
        for _ in range(count):
            backend = KubernetesBackend(KubernetesSettings(namespace=namespace.name, **{**unlimited, **settings}))
            await backend.start()
            stack.push_async_callback(backend.close)
            backends.append(backend)
        yield backends


async def drain(backend: KubernetesBackend, owner: str) -> list[SandboxRecord]:
    """Claim as fast as possible until no warm sandbox is left."""
    claimed = []
    while True:
        try:
            claimed.append(await backend.claim(ClaimRequest(owner=owner)))
        except SandpodError as error:
            if error.code != ErrorCode.POOL_EXHAUSTED:
                raise
            if not sum(backend.warm().values()):
                return claimed
