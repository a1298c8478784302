"""Pools under a real operator: filled, claimed from, scaled, renewed, blocked."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from support.cluster.cluster import until
from support.operator.process import FAST, IMAGE, Objects, OperatorProcess, running


@pytest.fixture(scope="module")
def operator(objects: Objects, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    # A pod that starts slowly on a busy machine has one more status, which says so: not what is counted here.
    with running(tmp_path_factory.mktemp("operator") / "log", objects.namespace, STATUS_DELAY="300") as made:
        asyncio.run(objects.template())
        yield made


@pytest.fixture
async def pool(objects: Objects, operator: OperatorProcess) -> str:
    """A pool with two warm sandboxes."""
    assert operator.port
    await objects.apply("SandboxPool", "warm", templateRef={"name": "python"}, replicas=2)
    await objects.pool_has("warm", 2)
    return "warm"


async def test_life_of_a_pools_sandbox_costs_six_writes_and_what_is_claimed_outlives_the_pool(
    objects: Objects, operator: OperatorProcess
) -> None:
    """The operator's four; claim and deletion are the caller's. Its replacement costs three by then."""
    before = Counter(operator.writes())
    await objects.apply("SandboxPool", "counted", templateRef={"name": "python"}, replicas=1)
    await objects.pool_has("counted", 1)
    (name,) = await in_pool(objects, "counted")
    await objects.claim(name)
    assert "expiresAt" in await objects.phase(name, "Ready")
    await objects.delete("sandboxes", name)
    await objects.gone("pods", name)
    await objects.pool_has("counted", 1)
    made = Counter(operator.writes()) - before
    assert made["create", "Sandbox"] == made["create", "Pod"] == 2
    assert made["patch_status", "Sandbox"] == 3
    assert made["delete", "Sandbox"] == made["delete", "Pod"] == 0

    (name,) = await in_pool(objects, "counted")
    await objects.claim(name)
    await objects.delete("sandboxpools", "counted")

    async def only_the_claimed() -> bool:
        found = await objects.cluster.items("sandboxes", selector="sandpod.dev/pool=counted")
        return [s["metadata"]["name"] for s in found] == [name]

    await until("only the claimed one is left", only_the_claimed, within=60)
    await objects.phase(name, "Ready")
    await objects.delete("sandboxes", name)


async def in_pool(objects: Objects, pool: str) -> set[str]:
    """Return the names of the warm sandboxes of one pool."""
    found = await objects.cluster.items("sandboxes", selector=f"sandpod.dev/pool={pool},sandpod.dev/state=warm")
    return {s["metadata"]["name"] for s in found if s.get("status", {}).get("phase") == "Warm"}


async def test_pool_follows_kubectl_scale_and_replaces_a_warm_sandbox_that_lost_its_pod(
    objects: Objects, pool: str
) -> None:
    await objects.cluster.kubectl("scale", "sbxp", pool, "-n", objects.namespace, "--replicas=1")
    await objects.pool_has(pool, 1)
    assert (await objects.condition(pool, "Available"))["status"] == "True"
    (name,) = await in_pool(objects, pool)
    await objects.delete("pods", name)
    await objects.gone("sandboxes", name)
    await objects.pool_has(pool, 1)
    await objects.cluster.kubectl("scale", "sbxp", pool, "-n", objects.namespace, "--replicas=2")
    await objects.pool_has(pool, 2)


async def test_changed_template_renews_the_pool_which_is_never_empty(objects: Objects, pool: str) -> None:
    before = await in_pool(objects, pool)
    await objects.template(limits={"processes": 99})
    fewest = len(before)

    async def renewed() -> bool:
        nonlocal fewest
        warm = await in_pool(objects, pool)
        fewest = min(fewest, len(warm))
        return len(warm) == 2 and not warm & before

    await until("both are new", renewed, within=120)
    assert fewest >= 1
    await objects.pool_has(pool, 2)

    async def only_new_pods() -> bool:
        pods = await objects.cluster.items("pods")
        env = [e for p in pods for e in p["spec"]["containers"][0]["env"] if e["name"] == "SANDPOD_PROCESSES"]
        return {e["value"] for e in env} == {"99"}

    # A pod goes some seconds after its Sandbox.
    await until("no pod of the old template is left", only_new_pods, within=60)


async def test_broken_templates_cost_a_few_pods_say_why_hold_up_no_other_pool_and_can_be_mended(
    objects: Objects, operator: OperatorProcess, pool: str
) -> None:
    await objects.quota(**{"limits.cpu": "50"})
    broken: dict[str, dict[str, Any]] = {
        "pull": {"image": "nosuch.invalid/x:1"},
        "crash": {"image": await objects.pause_image(), "imagePullPolicy": "Never"},
        "huge": {"resources": {"cpu": "51", "cpuRequest": "100m"}},
    }
    before, begun = operator.writes()["create", "Pod"], time.monotonic()
    for name, spec in broken.items():
        await objects.template(name, **spec)
        await objects.apply("SandboxPool", name, templateRef={"name": name}, replicas=20)
    await objects.scale(pool, 3)
    await objects.pool_has(pool, 3)

    async def reported() -> dict[str, str]:
        found = {name: (await objects.condition(name, "Progressing"))["message"] for name in broken}
        words = {"pull": "ImagePullFailed: ", "crash": "StartFailed: ", "huge": "QuotaExceeded: "}
        return found if all(found[name].startswith(text) for name, text in words.items()) else {}

    said = await until("the pools say why", reported, within=60)
    assert "nosuch.invalid" in said["pull"]
    assert "runner: Injected" in said["crash"]
    assert "limits.cpu" in said["huge"]

    async def again() -> bool:
        return operator.writes()["create", "Pod"] >= before + 1 + 4 + 4 + 2

    await until("what crashed is tried again, twice", again, within=60)
    pods = Counter(p["metadata"]["labels"]["sandpod.dev/template"] for p in await objects.cluster.items("pods"))
    assert (pods["pull"], pods["huge"]) == (4, 0)
    written, passed = operator.writes()["create", "Pod"], time.monotonic() - begun
    # Four at first of the two that get pods, then one that crashed after 1, 2, 4, 8 and so on seconds, each up to one
    # sooner, since times in objects are whole seconds; it goes at the latest when what failed is kept no longer. The
    # pool that works gets one more, and gives nothing up for one whose sandboxes no quota here has room for.
    waits = (min(float(FAST["RETENTION"]), 2**n) - 1 for n in itertools.count())
    retries = sum(1 for _ in itertools.takewhile(lambda after: after <= passed, itertools.accumulate(waits)))
    assert written <= before + 4 + 4 + retries + 1
    for name in ("crash", "huge"):
        await objects.delete("sandboxpools", name)
    await recovers(objects, operator, "pull")
    await objects.delete("sandboxpools", "pull")
    await objects.delete("resourcequotas", "quota")


async def recovers(objects: Objects, operator: OperatorProcess, pool: str) -> None:
    """A blocked pool says why to who asks with kubectl, and is filled once its template works."""
    text = await objects.cluster.kubectl("describe", "sbxp", pool, "-n", objects.namespace)
    assert "Warning  PoolBlocked" in text
    assert "nosuch.invalid" in text
    assert (await objects.status(pool, "sandboxpools"))["reason"] == "PoolBlocked"
    await objects.scale(pool, 1)

    async def one() -> bool:
        return len(await objects.cluster.items("sandboxes", selector=f"sandpod.dev/pool={pool}")) == 1

    await until("one is left", one, within=60)
    made = operator.writes()["create", "Sandbox"]
    await objects.template(pool, image=IMAGE)
    await objects.pool_has(pool, 1)
    assert operator.writes()["create", "Sandbox"] == made + 1
