"""Two tenants whose claims no node takes, until room comes up."""

import asyncio

from sandpod_operator.quota.node_queue import MOST
from support.cluster import writing
from support.cluster.cluster import until
from support.cluster.fake_node import fake_node, name_of
from support.cluster.reading import call, path_of
from support.operator.process import Managed, Objects

CLAIMS = 20
ROOM = 2 * MOST
FULL = {"templateRef": {"name": "full"}}


def cores(room: int) -> str:
    """Return how much a node has that takes so many of these pods, beside what each node runs."""
    return f"{room * 1000 + 500}m"


async def claim(objects: Objects, *names: str) -> list[str]:
    """Make claims, and return what each says as it finds no node."""
    await asyncio.gather(*(objects.sandbox(name, **FULL) for name in names))
    return await asyncio.gather(*(objects.reason(name, "Unschedulable") for name in names))


async def placed(objects: Objects) -> int:
    """Return how many pods have a node."""
    return sum("nodeName" in pod["spec"] for pod in await objects.cluster.items("pods"))


async def test_tenant_with_one_claim_gets_a_node_before_one_with_many_that_came_first(
    managed_namespaces: Managed,
) -> None:
    many, few = (managed_namespaces.namespaces[part] for part in ("many", "few"))
    size = {"cpu": "1", "cpuRequest": "1", "memoryRequest": "32Mi"}
    async with fake_node(many.cluster, cpu=cores(0)) as there:
        try:
            for objects in (many, few):
                await objects.template("full", resources=size, **there)
            names = [f"many-{each}" for each in range(CLAIMS)]
            await claim(many, *names[:MOST])
            said = await claim(many, *names[MOST:])
            assert any("Others of its template wait for a node before it." in text for text in said), said
            [alone] = await claim(few, "one")
            assert "Others" not in alone
            await room_for_one(many, few)
        finally:
            for objects in (many, few):
                call("DELETE", path_of("sandboxes", objects.namespace))
                call("DELETE", f"{path_of('pods', objects.namespace)}?gracePeriodSeconds=0")


async def room_for_one(many: Objects, few: Objects) -> None:
    """Have the node take more and more pods, until one is that of the tenant with few."""
    for room in range(ROOM, CLAIMS + 1):
        size = {"status": {"allocatable": {"cpu": cores(room)}}}
        await asyncio.to_thread(writing.patch, "nodes", "", name_of(many.cluster), size, part="status")

        async def taken(room: int = room) -> bool:
            return await placed(many) + await placed(few) == room

        await until(f"{room} pods have a node", taken, within=90)
        if await placed(few):
            return
    raise AssertionError("all of the other tenant's claims had a node first")
