"""Claims over an API server in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandpod_api.types import Sandbox
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.kubernetes.cache.sandbox_cache import SandboxStore
from sandpod_gateway.backends.kubernetes.claims import claimer
from sandpod_gateway.backends.kubernetes.claims.claimer import Claimer
from sandpod_gateway.backends.kubernetes.claims.readiness import Background
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.secrets.values import Secret
from support.gateway.kube_objects import MemoryApi, NoStreams, body

if TYPE_CHECKING:
    from sandpod_gateway.backends.kubernetes.cluster import Cluster
    from sandpod_gateway.backends.kubernetes.streams.warm_streams import WarmStreams

LIMIT = 60.0  # seconds that a claim may take


class Place:
    """A claimer over an API in memory. The store knows what the test shows it."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.store = SandboxStore()
        self.background = Background()
        self.touched: list[str] = []

    def claimer(self, **settings: Any) -> Claimer:
        return Claimer(
            cast("Cluster", self.api),
            self.store,
            KubernetesSettings(**settings),
            streams=cast("WarmStreams", NoStreams()),
            background=self.background,
            touch=self.touch,
        )

    async def touch(self, name: str) -> None:
        self.touched.append(name)

    def warm(self, name: str) -> None:
        self.see(self.api.put(body(name)))

    def watch_catches_up(self) -> None:
        """Let the watch report all that is there and all that was written."""
        for known in self.api.objects.values():
            self.see(known)
        self.store.reached(max(known["metadata"]["resourceVersion"] for known in self.api.objects.values()))

    def see(self, told: dict[str, Any]) -> None:
        self.store.take(told)

    async def claim(self, session: str = "", *, ask: bool | None = None, **settings: Any) -> Sandbox:
        """Claim as alice, who may ask for a cold start or rule it out."""
        request = ClaimRequest(owner="alice", session=session, cold_start=ask)
        claiming = self.claimer(**settings).claim(request)
        return (await asyncio.wait_for(claiming, LIMIT))[0]

    def claim_with_secret(self, session: str = "") -> asyncio.Task[Sandbox]:
        """Begin to claim as alice, with a value that is kept."""
        secret = Secret(name="TOKEN", value="s3cr3t-value-0123456789")
        request = ClaimRequest(owner="alice", session=session, secrets=(secret,))

        async def claim() -> Sandbox:
            return (await self.claimer(secrets=True).claim(request))[0]

        return asyncio.create_task(claim())

    async def until_asked(self, kind: str) -> None:
        async with asyncio.timeout(LIMIT):
            while kind not in self.api.requests:  # noqa: ASYNC110 # the API in memory has no event for it
                await asyncio.sleep(0)

    async def starting(self) -> str:
        """Return the name of the sandbox that a claim has made, once there is one that it waits for."""
        async with asyncio.timeout(LIMIT):
            while not self.store.owned("alice"):  # noqa: ASYNC110 # the store tells of changes to those who look at it
                await asyncio.sleep(0)
        name = self.store.owned("alice")[0].metadata.name
        self.see(self.api.objects[name])  # a watch tells of everything in order, so of the creation first
        return name


@asynccontextmanager
async def quick_place(patch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    """Give a place in which claims hardly pause."""
    patch.setattr(claimer, "LOST_RACE_WAIT", 0.001)
    patch.setattr(claimer, "PAUSES", (0.0, 0.0))
    patch.setattr(claimer, "WATCH_LAG", 0.001)
    place = Place()
    yield place
    await place.background.close()
