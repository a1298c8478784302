"""Several real pools in a namespace whose ResourceQuota is too small for all of them."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from support.cluster.cluster import ClusterError, T, until
from support.operator.process import Objects, OperatorProcess, running

PODS = 4


@pytest.fixture(scope="module")
def operator(objects: Objects, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with running(tmp_path_factory.mktemp("operator") / "log", objects.namespace, BACKOFF_MAX="4") as made:
        asyncio.run(objects.quota(pods=str(PODS)))
        asyncio.run(objects.template(resources={"cpuRequest": "10m", "memoryRequest": "32Mi"}))
        yield made


async def warm(objects: Objects) -> Counter[str]:
    """How many sandboxes of each pool can be claimed."""
    found = await objects.cluster.items("sandboxes")
    return Counter(
        s["metadata"]["labels"]["sandpod.dev/pool"]
        for s in found
        if "claim" not in s["spec"] and s.get("status", {}).get("phase") == "Warm"
    )


async def comes(objects: Objects, what: str, look: Callable[[], Awaitable[T]]) -> T:
    """Wait as `until`, and say how all stands where that does not come."""
    try:
        return await until(what, look, within=60)
    except ClusterError as error:
        kinds = ("sandboxpools", "sandboxes", "pods")
        found = [(kind, o) for kind in kinds for o in await objects.cluster.items(kind)]
        stands = [(kind, o["metadata"]["name"], json.dumps(o.get("status", {}))[:600]) for kind, o in found]
        raise ClusterError(f"{error}; {stands}") from None


async def has(objects: Objects, **wanted: int) -> None:
    async def look() -> bool:
        return dict(await warm(objects)) == wanted

    await comes(objects, f"the pools have {wanted}", look)


async def test_pools_share_a_quota_that_is_full_and_a_claim_goes_first(
    objects: Objects, operator: OperatorProcess
) -> None:
    for pool, replicas in (("first", 8), ("second", 4), ("third", 2)):
        await objects.apply("SandboxPool", pool, templateRef={"name": "python"}, replicas=replicas)

    async def shared() -> bool:
        now = await warm(objects)
        return now.total() == PODS and set(now) == {"first", "second", "third"}

    await comes(objects, "each pool has some", shared)

    async def told() -> dict[str, Any]:
        found = await objects.condition("first", "Progressing")
        return found if "claims first" in found["message"] else {}

    found = await comes(objects, "the pool says why it is not full", told)
    assert (found["reason"], found["status"]) == ("PoolBlocked", "False")
    assert found["message"].startswith("QuotaExceeded: ")
    before = await warm(objects)
    writes = operator.writes()["create", "Pod"]
    await objects.sandbox("urgent")
    await objects.phase("urgent", "Ready")
    after = await warm(objects)
    assert (after.total(), set(after)) == (PODS - 1, set(before))
    assert not after - before, "no pool has more than before"
    # The claim's pod, and no other.
    assert operator.writes()["create", "Pod"] == writes + 1
    await objects.delete("sandboxes", "urgent")
    await objects.gone("pods", "urgent")
    await comes(objects, "the place is a pool's again", shared)


async def test_room_that_comes_is_shared_by_what_each_wants(objects: Objects, operator: OperatorProcess) -> None:
    assert operator.port
    await objects.patch("resourcequotas", "quota", {"spec": {"hard": {"pods": "6"}}})
    for pool, replicas in (("first", 3), ("second", 2), ("third", 1)):
        await objects.scale(pool, replicas)
    await has(objects, first=3, second=2, third=1)

    async def all_full() -> bool:
        found = [await objects.condition(pool, "Progressing") for pool in ("first", "second", "third")]
        return all(condition["reason"] == "PoolFull" for condition in found)

    await comes(objects, "all say that they are full", all_full)
