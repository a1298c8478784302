"""What runs only in the active replica, and what ends it."""

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandpod_operator.manager.health import Health
from sandpod_operator.manager.manager import Operator
from sandpod_operator.metrics import Metrics
from support.operator.world import NOW, ApiServer, settings

if TYPE_CHECKING:
    from sandpod_kube.client import KubeClient


class BrokenApi(ApiServer):
    """Reads fail in a way that nobody expects."""

    async def get(self, *_: object) -> dict[str, Any]:
        raise ValueError("the token file is empty")


async def test_election_that_breaks_is_not_one_that_is_won() -> None:
    api, metrics = BrokenApi(clock=lambda: NOW), Metrics()
    health = Health(settings(), metrics)
    operator = Operator(
        cluster=cast("KubeClient", api), settings=settings(), metrics=metrics, health=health, stop=asyncio.Event()
    )
    async with asyncio.timeout(5):
        with pytest.raises(ValueError, match="token file"):
            await operator.run()
    assert health.role == "standby"
    assert api.writes == []
