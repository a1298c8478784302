"""What runs only in the active replica, and what ends it."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import generate_latest

from sandpod_kube.errors import DeniedError, NotFoundError, UnreachableError
from sandpod_kube.resources import LEASES, PODS, SANDBOXES, TEMPLATES, Key, Resource
from sandpod_operator.controllers import watches
from sandpod_operator.controllers.namespaces import Found, NamespacesChangedError, find_usable
from sandpod_operator.manager.health import Health
from sandpod_operator.manager.leader_election import Elector, LeadershipLostError
from sandpod_operator.manager.manager import FAILED, OK, Operator, Process, serve
from sandpod_operator.metrics import Metrics
from sandpod_operator.settings import OperatorSettings
from support.gateway.peers import until
from support.operator.world import NOW, SPACE, ApiServer, pod_object, sandbox_object, settings, template_object

if TYPE_CHECKING:
    from sandpod_kube.client import KubeClient


def a_process(api: ApiServer, health: Health, **changes: Any) -> tuple[Process, Elector]:
    cluster, found = cast("KubeClient", api), settings(**changes)
    return Process(cluster, found, None, Metrics(), health, asyncio.Event()), Elector(cluster, found, lambda: NOW)


def an_operator(api: ApiServer, health: Health, *namespaces: str, **changes: Any) -> Operator:
    """An operator that may manage these namespaces of its settings."""
    process, elector = a_process(api, health, **changes)
    return Operator(process, elector, namespaces or process.settings.namespaces)


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
    async with asyncio.timeout(60):
        with pytest.raises(ValueError, match="token file"):
            await an_operator(api, health).run()
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
    api = ApiServer(clock=lambda: NOW)
    api.set(TEMPLATES, template_object())
    api.set(SANDBOXES, sandbox_object(claimed=1))
    async with asyncio.timeout(60):
        assert await an_operator(api, Health(settings(), Metrics())).run() == FAILED
    assert {kind for _, kind in api.writes} == {"Lease"}


@pytest.mark.promise("tenants-unaffected")
async def test_namespace_that_is_gone_is_left_out_and_none_at_all_is_a_trouble() -> None:
    api = SpacesApi("a", "c")
    assert await find_usable(cast("KubeClient", api), ("a", "b", "c")) == (("a", "c"), None, ("b",))
    api.readable.clear()
    usable, trouble, _ = await find_usable(cast("KubeClient", api), ("a", "b"))
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

    usable, trouble, _ = await find_usable(cast("KubeClient", Api(clock=lambda: NOW)), ("a", "b"))
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

    api, pace = SpacesApi(*before), {"heartbeat_interval": 0.001, "heartbeat_timeout": 0.002}

    async def watched(*_: object, **__: object) -> None:
        api.readable = after
        await forever()

    monkeypatch.setattr(watches, "watch", watched)
    monkeypatch.setattr(ApiServer, "access", None, raising=False)
    monkeypatch.setattr(Elector, "acquire", lambda _: asyncio.sleep(0))
    monkeypatch.setattr(Elector, "keep", forever)
    if when == "waiting":
        api.readable = after
    operator = an_operator(
        api, Health(settings(), Metrics()), *sorted(before), namespaces=tuple(sorted(before | after)), **pace
    )
    async with asyncio.timeout(60):
        with pytest.raises(NamespacesChangedError, match=f"can now read {', '.join(sorted(after))}$"):
            await operator.run()
    assert (when == "waiting") == (api.writes == [])


async def test_operator_that_begins_anew_keeps_its_lease_and_looks_after_the_new_namespaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, metrics = SpacesApi("a"), Metrics()
    pace = {"heartbeat_interval": 0.001, "heartbeat_timeout": 0.002, "namespaces": ("a", "b")}
    health = Health(settings(), metrics)
    process, elector = a_process(api, health, **pace)
    watched: list[tuple[str, ...]] = []

    async def watch(_: object, __: object, found: OperatorSettings, **___: object) -> None:
        watched.append(found.namespaces)
        # Others can be read, then one of them alone, and then it is told to end.
        readable: list[tuple[str, ...]] = [("a", "b"), ("b",)]
        if len(watched) > len(readable):
            process.stop.set()
        else:
            api.readable = set(readable[len(watched) - 1])
        await asyncio.Event().wait()

    monkeypatch.setattr(watches, "watch", watch)
    monkeypatch.setattr(ApiServer, "access", None, raising=False)
    async with asyncio.timeout(60):
        assert await serve(process, elector, Found(("a",))) == OK
    assert watched == [("a",), ("a", "b"), ("b",)]
    assert api.writes.count(("create", "Lease")) == 1
    [lease] = [each for each in api.list(LEASES, process.settings.namespace) if "leaseTransitions" in each["spec"]]
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("one", 1)
    assert 'namespace="b"' in (text := generate_latest(metrics.registry).decode())
    assert 'namespace="a"' not in text


async def test_what_goes_between_the_first_list_and_the_watches_is_found_out_once_these_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, metrics = ApiServer(clock=lambda: NOW), Metrics()
    health = Health(settings(), metrics)
    process, elector = a_process(api, health)
    process = process._replace(metrics=metrics)
    api.set(TEMPLATES, template_object())
    api.set(SANDBOXES, sandbox_object(claimed=1))
    api.set(PODS, pod_object())

    def missed() -> float | None:
        return metrics.registry.get_sample_value("sandpod_operator_watch_missed_total", {"kind": "Pod"})

    async def watch(seen: watches.Seen, *_: object, **__: object) -> None:
        del api.objects[Key("Pod", SPACE, "box")]
        await until(lambda: bool(api.list(LEASES, SPACE)))
        assert not missed()
        [heartbeat] = api.list(LEASES, SPACE)
        seen(LEASES, "ADDED", heartbeat)
        await until(lambda: missed() == 1)
        process.stop.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(watches, "watch", watch)
    monkeypatch.setattr(ApiServer, "access", None, raising=False)
    async with asyncio.timeout(60):
        assert await serve(process, elector, Found(process.settings.namespaces)) == OK
