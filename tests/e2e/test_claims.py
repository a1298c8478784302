"""Claims of two gateways against a real API server: no sandbox is ever given twice, however they race.

The sandboxes are plain objects in a namespace of their own, which no operator looks after: the tests set their status,
so that no pod is needed and hundreds of them cost seconds.
"""

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sandpod_api import names
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.backends.kubernetes import cluster as cluster_module
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError
from sandpod_kube.errors import RefusedError
from support.cluster.cluster import Cluster, until
from support.cluster.warm_objects import TEMPLATE, Namespace, drain, gateways


@pytest.fixture
async def namespace(cluster: Cluster) -> AsyncIterator[Namespace]:
    """A namespace with a template and nothing else, deleted afterwards."""
    name = f"claims-{uuid.uuid4().hex[:8]}"
    await cluster.kubectl("create", "namespace", name)
    api = await cluster_module.Cluster.connect(KubernetesSettings(namespace=name))
    try:
        template = {"apiVersion": names.API_VERSION, "kind": "SandboxTemplate", "spec": {"image": "none"}}
        await api.create(names.TEMPLATES, template | {"metadata": {"name": TEMPLATE}})
        yield Namespace(api, name)
    finally:
        await api.close()
        await cluster.kubectl("delete", "namespace", name, "--wait=false")


async def check_all_claimed_once(namespace: Namespace, claimed: list[SandboxRecord], count: int) -> None:
    names_of = Counter(record.name for record in claimed)
    assert [name for name, times in names_of.items() if times > 1] == []
    assert len(names_of) == count
    holders = {o["metadata"]["name"]: o["spec"]["claim"]["owner"] for o in await namespace.all()}
    assert holders == {record.name: record.owner for record in claimed}


@pytest.mark.promise("stream-client")
async def test_hundreds_of_claims_of_two_gateways_never_give_a_sandbox_twice(namespace: Namespace) -> None:
    await namespace.make_warm(300)
    async with gateways(namespace, 2, cold_start=False) as backends:
        draining = (drain(backend, f"owner-{g}-{w}") for g, backend in enumerate(backends) for w in range(8))
        claimed = [record for records in await asyncio.gather(*draining) for record in records]
    await check_all_claimed_once(namespace, claimed, 300)


async def test_gateways_that_always_want_the_same_sandbox_get_different_ones(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: Callable[[Any], Any] = lambda options: min(options, key=lambda s: s.metadata.name)  # noqa: E731
    monkeypatch.setattr(random, "choice", first)
    await namespace.make_warm(100)
    async with gateways(namespace, 4, cold_start=False) as backends:
        draining = (drain(backend, f"owner-{g}") for g, backend in enumerate(backends))
        claimed = [record for records in await asyncio.gather(*draining) for record in records]
    await check_all_claimed_once(namespace, claimed, 100)


async def test_two_gateways_that_race_for_one_session_end_with_one_sandbox(namespace: Namespace) -> None:
    sessions = [f"session-{number}" for number in range(20)]
    await namespace.make_warm(60)
    async with gateways(namespace, 2, cold_start=False) as backends:

        async def race(session: str) -> SandboxRecord:
            request = ClaimRequest(owner="alice", session=session)
            one, other = await asyncio.gather(*(backend.claim(request) for backend in backends))
            assert one.name == other.name
            return one

        kept = {(await race(session)).name for session in sessions}
        assert len(kept) == len(sessions)

        async def only_the_kept_are_left() -> bool:
            return {o["metadata"]["name"] for o in await namespace.all() if "claim" in o["spec"]} == kept

        await until("the losers' sandboxes are deleted", only_the_kept_are_left, within=60)


async def test_an_empty_pool_is_told_or_a_sandbox_is_made(namespace: Namespace) -> None:
    async with gateways(namespace, 1, cold_start=False) as [backend]:
        with pytest.raises(SandpodError) as refused:
            await backend.claim(ClaimRequest(owner="alice"))
        assert refused.value.code == ErrorCode.POOL_EXHAUSTED
        with pytest.raises(SandpodError) as refused:
            await backend.claim(ClaimRequest(owner="alice", cold_start=True))
        assert refused.value.code == ErrorCode.INVALID_ARGUMENT
    async with gateways(namespace, 1) as [backend]:
        with pytest.raises(SandpodError) as refused:
            await backend.claim(ClaimRequest(owner="alice", cold_start=False))
        assert refused.value.code == ErrorCode.POOL_EXHAUSTED
        assert await namespace.all() == []
        claiming = asyncio.create_task(backend.claim(ClaimRequest(owner="alice", ttl=600)))
        name = await until("a sandbox is made", namespace.made_on_demand, within=60)
        assert name is not None
        await namespace.set_ready(name, "False", "Starting")
        await namespace.set_ready(name, "True", "Ready")
        record = await claiming
        assert (record.name, record.status, record.ttl, record.idle_timeout) == (name, "Ready", 600, 600)
        await backend.delete(name)


@pytest.mark.promise("start-failures")
async def test_a_sandbox_that_can_not_start_is_told_at_once_and_nothing_is_left(namespace: Namespace) -> None:
    async with gateways(namespace, 1) as [backend]:
        claiming = asyncio.create_task(backend.claim(ClaimRequest(owner="alice")))
        name = await until("a sandbox is made", namespace.made_on_demand, within=60)
        assert name is not None
        await namespace.set_ready(name, "False", "ImagePullFailed", "pulling nosuch.invalid/x:1 failed")
        with pytest.raises(SandpodError) as refused:
            await claiming
    assert refused.value.code == ErrorCode.IMAGE_PULL_FAILED
    assert refused.value.cause == "pulling nosuch.invalid/x:1 failed"
    assert await namespace.all() == []


async def test_a_claim_that_is_cancelled_leaves_nothing(namespace: Namespace) -> None:
    async with gateways(namespace, 1) as [backend]:
        claiming = asyncio.create_task(backend.claim(ClaimRequest(owner="alice")))
        await until("a sandbox is made", namespace.made_on_demand, within=60)
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)

        async def nothing_is_left() -> bool:
            return await namespace.all() == []

        await until("nothing is left", nothing_is_left, within=60)


async def test_a_claim_can_not_be_changed_by_anyone(namespace: Namespace) -> None:
    await namespace.make_warm(1)
    async with gateways(namespace, 1, cold_start=False) as [backend]:
        record = await backend.claim(ClaimRequest(owner="alice"))
    for change in ({"claim": None}, {"claim": {"owner": "bob"}}):
        with pytest.raises(RefusedError, match="written once"):
            await namespace.api.merge_patch(names.SANDBOXES, record.name, {"spec": change})
