"""What runs only in the active replica, and what ends it."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandpod_kube.errors import DeniedError, NotFoundError, UnreachableError
from sandpod_kube.resources import SANDBOXES, TEMPLATES, Resource
from sandpod_operator.controllers import watches
from sandpod_operator.manager.health import Health
from sandpod_operator.manager.leader_election import Elector, LeadershipLostError
from sandpod_operator.manager.manager import FAILED, Operator, find_usable
from sandpod_operator.metrics import Metrics
from support.operator.world import NOW, ApiServer, sandbox_object, settings, template_object

if TYPE_CHECKING:
    from sandpod_kube.client import KubeClient


class SpacesApi(ApiServer):
    """Only some namespaces can be read."""

    def __init__(self, *readable: str) -> None:
        super().__init__(clock=lambda: NOW)
        self.readable = set(readable)

    async def list_page(self, resource: Resource, namespace: str, query: Mapping[str, str]) -> dict[str, Any]:
        if namespace not in self.readable:
            raise DeniedError(403, "Forbidden", f"{resource.plural} is forbidden")
        return await super().list_page(resource, namespace, query)


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
            await operator.run(settings().namespaces)
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
        assert await operator.run(settings().namespaces) == FAILED
    assert {kind for _, kind in api.writes} == {"Lease"}


@pytest.mark.promise("tenants-unaffected")
async def test_namespace_that_is_gone_is_left_out_and_none_at_all_is_a_trouble() -> None:
    api = SpacesApi("a", "c")
    assert await find_usable(cast("KubeClient", api), ("a", "b", "c")) == (("a", "c"), None)
    api.readable.clear()
    usable, trouble = await find_usable(cast("KubeClient", api), ("a", "b"))
    assert usable == ()
    assert trouble is not None
    assert trouble.startswith("not allowed to read sandboxes in b: sandboxes is forbidden; install")


@pytest.mark.parametrize(
    ("error", "words"),
    [(NotFoundError(404), "install the chart's CRDs"), (UnreachableError("no answer"), "KUBECONFIG")],
)
async def test_cluster_that_can_not_be_used_is_one_trouble_whatever_the_namespaces(
    error: Exception, words: str
) -> None:
    class Api(ApiServer):
        async def list_page(self, *_: object) -> dict[str, Any]:
            raise error

    usable, trouble = await find_usable(cast("KubeClient", Api(clock=lambda: NOW)), ("a", "b"))
    assert usable == ()
    assert trouble is not None
    assert words in trouble


@pytest.mark.promise("tenants-unaffected")
@pytest.mark.parametrize(("before", "after"), [({"a", "b"}, {"a"}), ({"a"}, {"a", "b"})])
@pytest.mark.parametrize("when", ["waiting", "working"])
async def test_operator_begins_anew_when_other_namespaces_can_be_read(
    monkeypatch: pytest.MonkeyPatch, before: set[str], after: set[str], when: str
) -> None:
    async def forever(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    api, metrics = SpacesApi(*before), Metrics()
    found = settings(namespaces=tuple(sorted(before)), heartbeat_interval=0.001, heartbeat_timeout=0.002)

    async def watched(*_: object, **__: object) -> None:
        api.readable = after
        await forever()

    monkeypatch.setattr(watches, "watch", watched)
    monkeypatch.setattr(ApiServer, "access", None, raising=False)
    monkeypatch.setattr(Elector, "acquire", lambda _: asyncio.sleep(0))
    for method in ("keep", "release"):
        monkeypatch.setattr(Elector, method, forever if method == "keep" else lambda _: asyncio.sleep(0))
    if when == "waiting":
        api.readable = after
    operator = Operator(
        cluster=cast("KubeClient", api),
        settings=found,
        metrics=metrics,
        health=Health(found, metrics),
        stop=asyncio.Event(),
    )
    async with asyncio.timeout(60):
        assert await operator.run(("a", "b")) == FAILED
    assert (when == "waiting") == (api.writes == [])
