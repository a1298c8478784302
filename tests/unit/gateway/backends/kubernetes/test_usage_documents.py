"""Usage documents as ConfigMaps."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from sandpod_gateway.backends.kubernetes.usage import ENTRY, LABEL, ConfigMaps
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.usage.stores import Documents
from sandpod_kube.errors import ConflictError, NotFoundError, UnreachableError
from sandpod_kube.resources import CONFIG_MAPS, Resource

PLACE = "sandpod/sandpod-gateway-usage"


class Cluster:
    """As much of an API server as ConfigMaps need; implements `KubeClient` so far."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.down = False
        self._version = 0

    async def list_page(self, resource: Resource, namespace: str, query: Mapping[str, str]) -> dict[str, Any]:
        self._check(resource, namespace)
        label, _, value = query["labelSelector"].partition("=")
        items = [each for each in self.objects.values() if each["metadata"]["labels"].get(label) == value]
        return {"metadata": {"resourceVersion": str(self._version)}, "items": items}

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        self._check(resource, namespace)
        if name not in self.objects:
            raise NotFoundError(404)
        return self.objects[name]

    async def create(self, resource: Resource, manifest: dict[str, Any], namespace: str) -> dict[str, Any]:
        self._check(resource, namespace)
        if manifest["metadata"]["name"] in self.objects:
            raise ConflictError(409)
        return self._put("ADDED", manifest)

    async def patch(self, resource: Resource, namespace: str, name: str, change: dict[str, Any]) -> dict[str, Any]:
        self._check(resource, namespace)
        old = self._current(name, change["metadata"]["resourceVersion"])
        return self._put("MODIFIED", {**old, "data": change["data"]})

    async def delete(self, resource: Resource, namespace: str, name: str, preconditions: Mapping[str, str]) -> None:
        self._check(resource, namespace)
        self._current(name, preconditions["resourceVersion"])
        self.events.put_nowait({"type": "DELETED", "object": self.objects.pop(name)})

    async def watch(
        self, resource: Resource, namespace: str, query: Mapping[str, str], version: str, *, silence: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        assert (resource, namespace, silence) == (CONFIG_MAPS, "sandpod", 90)
        assert query["labelSelector"]
        assert version.isdecimal()
        while True:
            yield await self.events.get()

    def _check(self, resource: Resource, namespace: str) -> None:
        assert (resource, namespace) == (CONFIG_MAPS, "sandpod")
        if self.down:
            raise UnreachableError("no answer")

    def _current(self, name: str, version: str) -> dict[str, Any]:
        if name not in self.objects:
            raise NotFoundError(404)
        if self.objects[name]["metadata"]["resourceVersion"] != version:
            raise ConflictError(409)
        return self.objects[name]

    def _put(self, kind: str, manifest: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        made = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(self._version)}}
        self.objects[made["metadata"]["name"]] = made
        self.events.put_nowait({"type": kind, "object": made})
        return made


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def store(cluster: Cluster) -> ConfigMaps:
    fake: Any = SimpleNamespace(client=cluster)
    return ConfigMaps(lambda: fake, PLACE, 90)


async def test_documents_are_written_by_test_and_set(store: ConfigMaps, cluster: Cluster) -> None:
    first = await store.write("usage-a", b"1", None)
    assert first is not None
    assert await store.write("usage-a", b"2", None) is None
    second = await store.write("usage-a", b"2", first)
    assert second is not None
    assert await store.write("usage-a", b"3", first) is None
    assert await store.write("usage-b", b"3", "7") is None
    await store.delete("usage-a", first)
    [made] = cluster.objects.values()
    assert made["metadata"]["name"] == "sandpod-gateway-usage-usage-a"
    assert (made["metadata"]["labels"], made["data"]) == ({LABEL: "sandpod-gateway-usage"}, {ENTRY: "2"})
    assert {name: each.content for name, each in (await store.read()).items()} == {"usage-a": b"2"}
    await store.delete("usage-a", second)
    await store.delete("usage-a", second)
    assert await store.read() == {}


@pytest.mark.parametrize("there", [True, False])
async def test_documents_are_deleted_with_their_owner(cluster: Cluster, *, there: bool) -> None:
    fake: Any = SimpleNamespace(client=cluster)
    if there:
        cluster.objects["config"] = {"metadata": {"name": "config", "uid": "u-1", "resourceVersion": "1"}}
    assert await ConfigMaps(lambda: fake, PLACE, 90, "config").write("usage-a", b"1", None) is not None
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "config", "uid": "u-1"}
    metadata = cluster.objects["sandpod-gateway-usage-usage-a"]["metadata"]
    assert metadata.get("ownerReferences") == ([owner] if there else None)


async def test_changes_are_followed(store: ConfigMaps, cluster: Cluster) -> None:
    seen = asyncio.Queue[Documents]()
    following = asyncio.create_task(store.follow(lambda documents: seen.put_nowait(dict(documents))))
    assert await seen.get() == {}
    version = await store.write("live-a", b"1", None)
    assert [each.content for each in (await seen.get()).values()] == [b"1"]
    cluster.events.put_nowait({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}})
    assert version is not None
    await store.delete("live-a", version)
    assert await seen.get() == {}
    cluster.events.put_nowait({"type": "ERROR", "object": {"code": 410}})
    assert await seen.get() == {}, "it began anew"
    following.cancel()
    await asyncio.wait({following})


async def test_cluster_that_is_down_is_a_coded_error(store: ConfigMaps, cluster: Cluster) -> None:
    cluster.down = True
    for work in (store.read(), store.write("usage-a", b"", None), store.delete("usage-a", "1")):
        with pytest.raises(SandpodError, match="The cluster did not answer while usage was") as failed:
            await work
        assert failed.value.code == "backend_unavailable"
