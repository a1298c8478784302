from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from sandpod_kube.resources import LEASES, PODS, SANDBOXES, Key
from sandpod_operator.controllers.watches import create_sink
from sandpod_operator.manager.health import Health, create_app
from sandpod_operator.manager.leader_election import build_heartbeat
from sandpod_operator.metrics import Metrics
from support.operator.world import NOW, World, metadata, settings


class Clock:
    """A monotonic clock that the test moves."""

    time = 1000.0

    def __call__(self) -> float:
        return self.time


class Place:
    """The health of an operator of two namespaces."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.metrics = Metrics()
        self.settings = settings(namespaces=("boxes", "more"))
        self.health = Health(self.settings, self.metrics, self.clock)

    async def get(self, path: str) -> tuple[int, str]:
        async with TestClient(TestServer(create_app(self.health, self.metrics))) as client:
            answer = await client.get(path)
            return answer.status, await answer.text()

    def beat(self, namespace: str, holder: str = "one") -> None:
        self.health.beat(namespace, holder)


@pytest.fixture
def place() -> Place:
    return Place()


async def test_standby_is_healthy_and_ready(place: Place) -> None:
    place.clock.time += 10_000
    assert await place.get("/healthz") == (200, "ok\n")
    assert await place.get("/readyz") == (200, "standby\n")


async def test_active_replica_is_healthy_while_heartbeats_come_back(place: Place) -> None:
    place.health.lead(("boxes", "more"))
    assert await place.get("/readyz") == (200, "active\n")
    for _ in range(5):
        place.clock.time += 60
        place.beat("boxes")
        place.beat("more")
        assert await place.get("/healthz") == (200, "ok\n")


async def test_health_fails_when_one_namespaces_events_stop(place: Place) -> None:
    place.health.lead(("boxes", "more"))
    place.clock.time += 60
    place.beat("boxes")
    place.clock.time += 31
    assert await place.get("/healthz") == (503, "no watch event for 90 s in more\n")


async def test_heartbeat_of_another_replica_proves_nothing(place: Place) -> None:
    place.health.lead(("boxes", "more"))
    place.clock.time += 91
    place.beat("boxes", "two")
    place.beat("more", "two")
    assert (await place.get("/healthz"))[0] == 503


async def test_metrics_are_served_with_the_age_of_the_watch(place: Place) -> None:
    place.health.lead(("boxes", "more"))
    place.clock.time += 7
    status, text = await place.get("/metrics")
    assert status == 200
    assert 'sandpod_operator_watch_age_seconds{namespace="boxes"} 7.0' in text
    assert "sandpod_operator_leader 1.0" in text


def test_heartbeat_is_exactly_this() -> None:
    assert build_heartbeat("boxes", "one", NOW) == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "sandpod-operator-heartbeat",
            "namespace": "boxes",
            "labels": {"app.kubernetes.io/managed-by": "sandpod"},
        },
        "spec": {"holderIdentity": "one", "renewTime": "2026-03-01T12:00:00.000000Z"},
    }


class Listener:
    """What a sink passes on."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def saw(self, resource: object, manifest: dict[str, Any]) -> None:
        self.heard.append(("saw", resource, manifest["metadata"]["name"]))

    def lost(self, key: Key, uid: str = "") -> None:
        self.heard.append(("lost", key.name, uid))


def test_watch_events_go_to_the_controller_and_heartbeats_to_the_health(place: Place) -> None:
    place.health.lead(("boxes", "more"))
    place.clock.time += 91
    world, listener = World(), Listener()
    world.dispatcher.saw = listener.saw  # type: ignore[method-assign]
    world.dispatcher.lost = listener.lost  # type: ignore[method-assign]
    lost: list[str] = []
    seen = create_sink(world.dispatcher, place.health.beat, lost.append)
    for namespace in ("boxes", "more"):
        seen(LEASES, "MODIFIED", build_heartbeat(namespace, "one", NOW))
    seen(SANDBOXES, None, {"metadata": metadata("box")})
    seen(PODS, "DELETED", {"metadata": metadata("box")})
    assert place.health.trouble() is None
    assert listener.heard == [("saw", SANDBOXES, "box"), ("lost", "box", "uid-box")]
    election = build_heartbeat("boxes", "one", NOW)
    election["metadata"]["name"] = "sandpod-operator"
    for lease in (election, build_heartbeat("more", "other", NOW)):
        seen(LEASES, "DELETED", lease)
    assert lost == ["more"]


def test_lease_of_the_election_is_no_heartbeat(place: Place) -> None:
    place.health.lead(("boxes", "more"))
    place.clock.time += 91
    lease = build_heartbeat("boxes", "one", NOW)
    lease["metadata"]["name"] = "sandpod-operator"
    create_sink(World().dispatcher, place.health.beat)(LEASES, "MODIFIED", lease)
    assert place.health.trouble() is not None
