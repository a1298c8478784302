"""Fixtures for a cluster that `make install` has prepared. Nothing is made here; what is missing is said."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.cluster.callers import Caller, Session, kept
from support.cluster.cluster import Cluster, node_url, spread_service, until
from support.operator.process import Managed, Objects, managed, namespace
from support.servers.nginx import Proxy, nginx


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    if "SANDPOD_TEST_KUBERNETES" not in os.environ:
        pytest.fail("These tests need a cluster with the chart installed: run make test-cluster.")
    return Cluster(
        namespace=os.environ.get("SANDPOD_NAMESPACE", "sandpod"),
        sandboxes=os.environ.get("SANDPOD_SANDBOX_NAMESPACE", "sandpod-sandboxes"),
    )


@pytest.fixture(scope="module")
def objects(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Objects]:
    """A namespace for the tests of a module, which an operator of their own keeps."""
    assert cluster.namespace
    part = request.module.__name__.rpartition("test_")[2].replace("_", "-")
    with namespace(part) as own:
        yield Objects(cluster=own)


@pytest.fixture(scope="session")
def managed_namespaces(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    """Namespaces that one operator manages, each for one module: an operator for each module costs seconds."""
    assert cluster.namespace
    parts = ("life", "same-first", "same-second", "webhooks", "guarded", "suspended", "many", "few", "ends")
    with managed(tmp_path_factory.mktemp("operator") / "log", *parts) as made:
        yield made


@pytest.fixture(scope="session")
def full_disk(managed_namespaces: Managed) -> str:
    """A sandbox of the namespace "ends" that uses more of the node's disk than it may.

    The kubelet takes up to two minutes to notice: tests that use it only to begin that early go on meanwhile.
    """
    objects = managed_namespaces.namespaces["ends"]
    fill = "file = open('/workspace/fill', 'wb', 0)\nfor _ in range(160): file.write(bytes(1 << 20))"

    async def begin() -> None:
        await objects.template("disk", workspace={"medium": "Disk", "size": "64Mi"})
        await objects.sandbox("disk", templateRef={"name": "disk"})
        await objects.phase("disk", "Ready")
        await objects.cluster.in_pod("disk", fill)

    asyncio.run(begin())
    return "disk"


@pytest.fixture(scope="session")
def keys() -> dict[str, str]:
    """API keys by user."""
    path = Path(os.environ.get("SANDPOD_KEYS", ".build/keys.json"))
    return {user: made["key"] for user, made in json.loads(path.read_text(encoding="utf-8")).items()}


@pytest.fixture(scope="session")
def gateway_url(cluster: Cluster) -> Iterator[str]:
    """The gateway's address: SANDPOD_URL, or its Service's port on the first node. Its callers keep no sandbox."""
    before = asyncio.run(cluster.held())
    yield os.environ.get("SANDPOD_URL") or node_url(cluster.namespace)

    async def given_back() -> bool:
        return await cluster.held() <= before

    asyncio.run(until("no test holds a sandbox any more", given_back, within=60))


@pytest.fixture(scope="session")
def alice(gateway_url: str, keys: dict[str, str]) -> Caller:
    return Caller(f"{gateway_url}/mcp", keys["alice"])


@pytest.fixture(scope="session")
def bob(gateway_url: str, keys: dict[str, str]) -> Caller:
    return Caller(f"{gateway_url}/mcp", keys["bob"])


@pytest.fixture(scope="session")
def proxy(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """nginx in front of all gateways, which serves TLS and keeps nobody at one of them."""
    with (
        spread_service(cluster.namespace) as address,
        nginx(tmp_path_factory.mktemp("nginx"), address) as proxy,
    ):
        yield proxy


@pytest.fixture(scope="session")
def proxied(proxy: Proxy, keys: dict[str, str]) -> Caller:
    """Alice, who comes through the proxy."""
    return Caller(f"{proxy.address}/mcp", keys["alice"], proxy.trust)


@pytest.fixture
async def session(alice: Caller) -> AsyncIterator[Session]:
    """A connection of alice."""
    async with alice.connect() as connected:
        yield connected


@pytest.fixture(scope="session")
def sandbox(alice: Caller) -> Iterator[str]:
    """A sandbox of alice for all tests that leave it as it was but for files: a pod costs more than most of them."""
    with kept(alice) as handle:
        yield handle


@pytest.fixture(scope="session")
def other(alice: Caller) -> Iterator[str]:
    """Another one, where programs attack their own sandbox or its neighbour."""
    with kept(alice) as handle:
        yield handle


@pytest.fixture
async def brief(session: Session) -> AsyncIterator[str]:
    """A sandbox of alice for one test, which need not leave it alive."""
    handle = await session.create()
    yield handle
    await session.close(handle)
