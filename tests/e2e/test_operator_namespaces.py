"""One operator manages several namespaces: the same names in each, and nothing of one reaches the other."""

import pytest

from support.operator.process import Managed, Objects, OperatorProcess

Two = tuple[Objects, Objects, OperatorProcess]


@pytest.fixture(scope="module")
def two(managed_namespaces: Managed) -> Two:
    spaces = managed_namespaces.namespaces
    return spaces["same-first"], spaces["same-second"], managed_namespaces.operator


async def test_same_names_in_two_namespaces_are_two_sandboxes_and_two_pools(two: Two) -> None:
    first, second, operator = two
    sizes = ((first, 0), (second, 1))
    for objects, replicas in sizes:
        await objects.sandbox("same")
        await objects.apply("SandboxPool", "pool", templateRef={"name": "python"}, replicas=replicas)
    for objects, replicas in sizes:
        await objects.phase("same", "Ready", within=90)
        await objects.pool_has("pool", replicas)
        assert await objects.cluster.get("networkpolicies", "sandpod-deny-all")
        ready = f'sandpod_pool_ready{{namespace="{objects.namespace}",pool="pool"}} {replicas}.0'
        assert ready in operator.get("/metrics")
    await first.delete("sandboxes", "same")
    await first.gone("pods", "same")
    assert (await second.status("same"))["phase"] == "Ready"
    assert len(await second.cluster.items("sandboxes", selector="sandpod.dev/pool=pool")) == 1


@pytest.mark.promise("status-kept", "start-failures")
async def test_quota_of_one_namespace_holds_up_no_other_and_exactly_one_pod_is_made_once_there_is_room(
    two: Two,
) -> None:
    first, second, operator = two
    await second.quota(pods="0")
    before = operator.writes()["create", "Pod"]
    for objects in (first, second):
        await objects.parked()
        await objects.sandbox("later", templateRef={"name": "parked"})
    assert "exceeded quota" in await second.reason("later", "QuotaExceeded")
    await first.has_pod("later")
    assert not await second.cluster.get("pods", "later")
    assert operator.writes()["create", "Pod"] == before + 1
    await second.quota(pods="5")
    await second.has_pod("later")
    assert operator.writes()["create", "Pod"] == before + 2
