"""Fixtures for a cluster that `make install` has prepared. Nothing is made here; what is missing is said."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.cluster.callers import Caller, Session, kept
from support.cluster.cluster import Cluster, node_url, until
from support.operator.process import Objects, namespace


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
