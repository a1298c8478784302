"""What runs only in the active replica, and what ends it."""

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandpod_kube.resources import SANDBOXES, TEMPLATES
from sandpod_operator.controllers import watches
from sandpod_operator.manager.health import Health
from sandpod_operator.manager.leader_election import Elector, LeadershipLostError
from sandpod_operator.manager.manager import FAILED, Operator
from sandpod_operator.metrics import Metrics
from support.operator.world import NOW, ApiServer, sandbox_object, settings, template_object

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
    async with asyncio.timeout(60):
        with pytest.raises(ValueError, match="token file"):
            await operator.run()
    assert health.role == "standby"
    assert api.writes == []


async def test_lease_that_was_lost_during_the_first_list_lets_no_worker_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(_: Elector) -> None:
        raise LeadershipLostError("another replica has taken the Lease")

    monkeypatch.setattr(Elector, "keep", lost)

    async def watched(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(watches, "watch", watched)
    monkeypatch.setattr(ApiServer, "access", None, raising=False)
    api, metrics = ApiServer(clock=lambda: NOW), Metrics()
    api.set(TEMPLATES, template_object())
    api.set(SANDBOXES, sandbox_object(claimed=1))
    operator = Operator(
        cluster=cast("KubeClient", api),
        settings=settings(),
        metrics=metrics,
        health=Health(settings(), metrics),
        stop=asyncio.Event(),
    )
    async with asyncio.timeout(60):
        assert await operator.run() == FAILED
    assert {kind for _, kind in api.writes} == {"Lease"}
