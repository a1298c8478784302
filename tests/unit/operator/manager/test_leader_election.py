"""Elections between replicas that share an API server and no clock."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandpod_kube.errors import DeniedError, OverloadedError, UnreachableError
from sandpod_kube.resources import CONFIG_MAPS, Key, Resource
from sandpod_operator.manager.leader_election import Elector, LeadershipLostError, build_lease
from support.operator.world import NOW, ApiServer, settings

if TYPE_CHECKING:
    from sandpod_kube.client import KubeClient

LEASE = Key("Lease", "default", "sandpod-operator")


class Replica:
    """One replica with a clock of its own."""

    def __init__(self, api: object, name: str, **others: str) -> None:
        self.time = 1000.0
        self.settings = settings(identity=name, **others)
        self.elector = Elector(cast("KubeClient", api), self.settings, self.now, lambda: self.time)

    def now(self) -> datetime:
        return NOW


@dataclass
class SilentApi(ApiServer):
    """An API server that does not answer, or can't."""

    error: Exception = field(default_factory=lambda: UnreachableError("no answer"))

    async def get(self, *_: object) -> dict[str, Any]:
        raise self.error


class LateApi:
    """Another API server's objects, read as they were at the beginning."""

    def __init__(self, other: ApiServer) -> None:
        self.old = dict(other.objects)
        self.create, self.replace = other.create, other.replace

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        return self.old[Key(resource.kind, namespace, name)]


@pytest.fixture
def api() -> ApiServer:
    return ApiServer(clock=lambda: NOW)


def holder(api: ApiServer) -> str:
    name: str = api.objects[LEASE]["spec"]["holderIdentity"]
    return name


async def test_first_replica_holds_the_lease_and_the_second_does_not(api: ApiServer) -> None:
    one, two = Replica(api, "one"), Replica(api, "two")
    assert await one.elector.try_take()
    assert not await two.elector.try_take()
    assert holder(api) == "one"


async def test_lease_that_is_renewed_is_never_taken(api: ApiServer) -> None:
    one, two = Replica(api, "one"), Replica(api, "two")
    await one.elector.try_take()
    for _ in range(10):
        two.time += 10
        await one.elector.renew()
        assert not await two.elector.try_take()


async def test_silent_holder_is_replaced_after_the_duration_on_the_others_clock(api: ApiServer) -> None:
    one, two = Replica(api, "one"), Replica(api, "two")
    await one.elector.try_take()
    assert not await two.elector.try_take()
    two.time += two.settings.lease_duration - 0.1
    assert not await two.elector.try_take()
    two.time += 0.1
    assert await two.elector.try_take()
    assert holder(api) == "two"
    assert api.objects[LEASE]["spec"]["leaseTransitions"] == 2
    with pytest.raises(LeadershipLostError, match="another replica"):
        await one.elector.renew()


async def test_released_lease_is_free_at_once(api: ApiServer) -> None:
    one, two = Replica(api, "one"), Replica(api, "two")
    await one.elector.try_take()
    await one.elector.release()
    assert await two.elector.try_take()
    await one.elector.release()
    assert holder(api) == "two"


async def test_only_one_of_two_that_saw_the_lease_free_gets_it(api: ApiServer) -> None:
    one = Replica(api, "one")
    await one.elector.try_take()
    await one.elector.release()
    two = Replica(LateApi(api), "two")
    assert await one.elector.try_take()
    assert not await two.elector.try_take()
    assert holder(api) == "one"


@pytest.mark.parametrize("error", [UnreachableError("no answer"), OverloadedError(503)])
async def test_silence_of_the_cluster_is_borne_until_the_deadline(api: ApiServer, error: Exception) -> None:
    one = Replica(api, "one")
    await one.elector.try_take()
    one.elector._cluster = cast("KubeClient", SilentApi(clock=lambda: NOW, error=error))
    one.time += one.settings.lease_renew_deadline - 0.1
    await one.elector.renew()
    one.time += 0.1
    with pytest.raises(LeadershipLostError, match="10 s"):
        await one.elector.renew()


async def test_renewal_that_was_written_twice_is_no_loss(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP client sends a PUT again whose connection broke, and the second one meets the first."""
    one = Replica(api, "one")
    await one.elector.try_take()
    replace = api.replace

    async def twice(resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        await replace(resource, manifest)
        return await replace(resource, manifest)

    monkeypatch.setattr(api, "replace", twice)
    await one.elector.renew()
    assert holder(api) == "one"
    monkeypatch.undo()
    one.time += one.settings.lease_renew_deadline - 0.1
    await one.elector.renew()


async def test_renewal_on_a_dead_connection_is_given_up_in_time_for_another(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Replica(api, "one")
    one.elector._settings = settings(identity="one", lease_retry=0.01, lease_renew_deadline=0.03)
    await one.elector.try_take()

    async def silent(*_: object) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    with monkeypatch.context() as broken:
        broken.setattr(api, "get", silent)
        await asyncio.wait_for(one.elector.renew(), 5)
    await one.elector.renew()
    assert holder(api) == "one"


async def test_lost_right_to_the_lease_ends_leadership(api: ApiServer) -> None:
    one = Replica(api, "one")
    await one.elector.try_take()

    async def refuse(*_: object) -> dict[str, Any]:
        raise DeniedError(403, "Forbidden", "no right")

    api.replace = refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(LeadershipLostError, match="no right"):
        await one.elector.renew()


async def test_waiting_replica_goes_on_trying_when_the_cluster_does_not_answer() -> None:
    one = Replica(SilentApi(clock=lambda: NOW), "one")
    one.elector._settings = settings(lease_retry=0.001)
    waiting = asyncio.create_task(one.elector.acquire())
    done, _ = await asyncio.wait({waiting}, timeout=0.02)
    assert not done
    one.elector._cluster = cast("KubeClient", ApiServer(clock=lambda: NOW))
    await asyncio.wait_for(waiting, 60)


async def test_lease_of_an_earlier_version_gets_an_owner_too(api: ApiServer) -> None:
    first = Replica(api, "one")
    await first.elector.acquire()
    await first.elector.release()
    assert "ownerReferences" not in api.objects[LEASE]["metadata"]
    await api.create(CONFIG_MAPS, {**CONFIG_MAPS.header, "metadata": {"name": "config", "namespace": "default"}})
    uid = api.objects[Key("ConfigMap", "default", "config")]["metadata"]["uid"]
    second = Replica(api, "two", lease_owner="config")
    await second.elector.acquire()
    [owner] = api.objects[LEASE]["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "ConfigMap", "name": "config", "uid": uid}


def test_lease_says_who_holds_it_since_when() -> None:
    first = build_lease(settings(), "one", NOW, None)
    assert first["metadata"] == {
        "name": "sandpod-operator",
        "namespace": "default",
        "labels": {"app.kubernetes.io/managed-by": "sandpod"},
    }
    assert first["spec"] == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-03-01T12:00:00.000000Z",
        "renewTime": "2026-03-01T12:00:00.000000Z",
        "leaseTransitions": 1,
    }
    later = build_lease(settings(), "one", NOW.replace(hour=13), first)
    assert later["spec"]["acquireTime"] == "2026-03-01T12:00:00.000000Z"
    assert later["spec"]["renewTime"] == "2026-03-01T13:00:00.000000Z"
    assert later["spec"]["leaseTransitions"] == 1
