"""One operator keeps several namespaces: the same names in each, and nothing of one reaches the other."""

from collections.abc import Iterator

import pytest

from support.operator.process import Objects, OperatorProcess, namespace, running

Two = tuple[Objects, Objects, OperatorProcess]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    log = tmp_path_factory.mktemp("operator") / "log"
    with (
        namespace("first") as first,
        namespace("second") as second,
        running(log, first.sandboxes, second.sandboxes) as operator,
    ):
        yield Objects(cluster=first), Objects(cluster=second), operator


async def test_same_names_in_two_namespaces_are_two_sandboxes_and_two_pools(two: Two) -> None:
    first, second, operator = two
    for objects, replicas in ((first, 1), (second, 2)):
        await objects.template()
        await objects.sandbox("same")
        await objects.apply("SandboxPool", "pool", templateRef={"name": "python"}, replicas=replicas)
    for objects, replicas in ((first, 1), (second, 2)):
        await objects.phase("same", "Ready", within=90)
        await objects.pool_has("pool", replicas)
        assert await objects.cluster.get("networkpolicies", "sandpod-deny-all")
        ready = f'sandpod_pool_ready{{namespace="{objects.namespace}",pool="pool"}} {replicas}.0'
        assert ready in operator.get("/metrics")
    await first.cluster.kubectl("delete", "sbx", "same", "-n", first.namespace)
    await first.gone("pods", "same")
    assert (await second.status("same"))["phase"] == "Ready"
    assert len(await second.cluster.items("sandboxes", selector="sandpod.dev/pool=pool")) == 2


async def test_broken_namespace_does_not_hold_up_the_other(two: Two) -> None:
    first, second, _ = two
    await second.put(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none"},
            "spec": {"hard": {"pods": "0"}},
        }
    )
    for objects in (first, second):
        await objects.template("other")
        await objects.sandbox("later", templateRef={"name": "other"})
    assert "exceeded quota" in await second.reason("later", "QuotaExceeded")
    await first.phase("later", "Ready", within=90)
    assert not await second.cluster.get("pods", "later")
