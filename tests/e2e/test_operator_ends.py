"""How a real kernel, kubelet and control plane take sandboxes away, and what their owners are told."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from support.cluster.cluster import Cluster, until
from support.operator.process import Objects, namespace, now, running

LOST = "sandpod.dev/test-lost"

# Fills what is in memory of the sandbox's own, beside the runner, which would end a run of its own before that.
FILL_MEMORY = (
    "import itertools\n"
    "files = [open(f'{folder}/fill', 'wb', 0) for folder in ('/workspace', '/tmp', '/dev/shm')]\n"
    "for file in itertools.cycle(files): file.write(bytes(1 << 20))"
)
FILL_DISK = "import shutil; file = open('/workspace/fill', 'wb', 0)\nfor _ in range(160): file.write(bytes(1 << 20))"


@pytest.fixture(scope="module")
def objects(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    assert cluster.namespace
    log = tmp_path_factory.mktemp("operator") / "log"
    # The one that ends while other tests go on is still there when it is looked at.
    with namespace("ends") as own, running(log, own.sandboxes, RETENTION="600"):
        made = Objects(cluster=own)
        asyncio.run(made.template())
        yield made


@pytest.fixture(scope="module")
def full_disk(objects: Objects) -> str:
    """A sandbox that uses more of the node's disk than it may; the kubelet finds out while other tests go on."""

    async def fill() -> None:
        await objects.template("disk", workspace={"medium": "Disk", "size": "64Mi"})
        await objects.sandbox("disk", templateRef={"name": "disk"})
        await objects.phase("disk", "Ready")
        await objects.cluster.in_pod("disk", FILL_DISK)

    asyncio.run(fill())
    return "disk"


@pytest.fixture
async def lost_node(objects: Objects) -> AsyncIterator[str]:
    """A node without a kubelet, so that the test can take it away; named to be the last of all."""
    name = "zz-sandpod-lost"
    room = {"cpu": "4", "memory": "8Gi", "pods": "10", "ephemeral-storage": "10Gi"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": now()}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {LOST: "true"}},
        "spec": {"taints": [{"key": LOST, "effect": "NoSchedule"}]},
    }
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    await objects.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(node))
    try:
        await patch_status(objects, "node", name, status)
        yield name
    finally:
        await objects.cluster.kubectl("delete", "node", name, "--wait=false")
        await objects.cluster.kubectl("delete", "pod", "lost", "-n", objects.namespace, "--force", check=False)


async def patch_status(objects: Objects, kind: str, name: str, status: object) -> None:
    change = json.dumps({"status": status})
    where = ("-n", objects.namespace) if kind == "pod" else ()
    await objects.cluster.kubectl("patch", kind, name, *where, "--subresource=status", "-p", change)


@pytest.mark.usefixtures("full_disk")
async def test_sandbox_that_uses_up_its_memory_is_told_so_by_the_kernels_word(objects: Objects) -> None:
    sizes = {"workspace": {"size": "128Mi"}, "tmpSize": "128Mi", "resources": {"memory": "128Mi"}}
    await objects.template("small", **sizes)
    await objects.sandbox("memory", templateRef={"name": "small"})
    await objects.phase("memory", "Ready")
    python = ("python3", "-I", "-c", FILL_MEMORY)
    await objects.cluster.kubectl("exec", "memory", "-n", objects.namespace, "--", *python, check=False)
    assert "ran out of memory" in await objects.reason("memory", "OutOfMemory", within=60)


async def test_drained_sandbox_is_told_to_be_evicted_and_by_whom(objects: Objects) -> None:
    await objects.sandbox("drained")
    await objects.phase("drained", "Ready")
    evict = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "drained", "namespace": objects.namespace},
    }
    path = f"/api/v1/namespaces/{objects.namespace}/pods/drained/eviction"
    await objects.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(evict))
    assert "Eviction API" in await objects.reason("drained", "Evicted", within=60)


async def test_sandbox_of_a_node_that_is_given_up_is_told_to_be_lost_and_why(objects: Objects, lost_node: str) -> None:
    await objects.template("there", nodeSelector={LOST: "true"}, tolerations=[{"key": LOST, "effect": "NoSchedule"}])
    await objects.sandbox("lost", templateRef={"name": "there"})

    async def bound() -> bool:
        pods = await objects.cluster.items("pods")
        return any(p["metadata"]["name"] == "lost" and p["spec"].get("nodeName") == lost_node for p in pods)

    await until("the pod has that node", bound, within=60)
    # What its kubelet would say.
    state = {"running": {"startedAt": now()}}
    container = {"name": "sandbox", "image": "x", "imageID": "", "ready": True, "started": True, "restartCount": 0}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": now()}
    status = {"phase": "Running", "conditions": [ready], "containerStatuses": [{**container, "state": state}]}
    await patch_status(objects, "pod", "lost", status)
    await objects.phase("lost", "Ready")
    await objects.cluster.kubectl("taint", "node", lost_node, f"{LOST}=gone:NoExecute")
    assert "aint" in await objects.reason("lost", "NodeLost", within=60)


async def test_sandbox_that_fills_the_nodes_disk_is_evicted_and_told_what_ran_out(
    objects: Objects, full_disk: str
) -> None:
    assert "limit" in await objects.reason(full_disk, "Evicted", within=240)
