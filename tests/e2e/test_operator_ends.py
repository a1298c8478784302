"""How a real kernel, kubelet, container runtime and control plane fail sandboxes, and what their owners are told.

A runtime that fails to start a container gets one fresh pod to try, and no more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from support.cluster.cluster import ClusterError, until
from support.cluster.nodes import on_every_node
from support.cluster.reading import RefusedError, call
from support.operator.process import Managed, Objects, OperatorProcess, now

LOST = "sandpod.dev/test-lost"

# Fills what is in memory of the sandbox's own, beside the runner, which would end a run of its own before that.
FILL_MEMORY = (
    "import itertools\n"
    "files = [open(f'{folder}/fill', 'wb', 0) for folder in ('/workspace', '/tmp', '/dev/shm')]\n"
    "for file in itertools.cycle(files): file.write(bytes(1 << 20))"
)
# A container runtime that fails to start containers: on the nodes `runc` is a wrapper meanwhile that fails for the pods
# of one test and hands on the rest, so no other test is disturbed; it is taken away whatever happens.
WORDS = "unable to start container process: can't get final child's PID from pipe: EOF"
# Fails a container's creation as often as the pod's name says, with the words of a runc that was killed meanwhile.
WRAPPER = r"""#!/bin/sh
last= bundle= log=
for word in "$@"; do
  case $last in --bundle) bundle=$word ;; --log) log=$word ;; esac
  last=$word
done
case " $* " in
  *" create "*)
    name=$(grep -o '"io.kubernetes.cri.sandbox-name":"fails-[0-9]"' "$bundle/config.json" | cut -d '"' -f 4)
    if [ -n "$name" ] && grep -q '"io.kubernetes.cri.container-type":"container"' "$bundle/config.json"; then
      failed=$(cat "/run/sandpod-$name" 2>/dev/null || echo 0)
      if [ "$failed" -lt "${name#fails-}" ]; then
        echo $((failed + 1)) >"/run/sandpod-$name"
        echo '{"level":"error","msg":"WORDS","time":"2026-01-01T00:00:00Z"}' >>"$log"
        exit 1
      fi
    fi
    ;;
esac
exec "$0.sandpod" "$@"
""".replace("WORDS", WORDS.replace("'", "'\\''"))
# Each by one rename, so that there is a runc at every moment; the wrapper's own is there for those that run it already.
BREAK = f"""
runc=$(command -v runc)
cat >$runc.new <<'END'
{WRAPPER}
END
chmod 755 $runc.new
cp -p $runc $runc.copy
mv $runc.copy $runc.sandpod
mv $runc.new $runc
"""
MEND = """
runc=$(command -v runc)
if [ -e $runc.sandpod ]; then cp -p $runc.sandpod $runc.copy; mv $runc.copy $runc; fi
rm -f /run/sandpod-fails-*
"""


@pytest.fixture(scope="module")
def objects(managed_namespaces: Managed) -> Objects:
    return managed_namespaces.namespaces["ends"]


@pytest.fixture(scope="module")
def operator(managed_namespaces: Managed) -> OperatorProcess:
    return managed_namespaces.operator


async def beat(objects: Objects, node: str) -> None:
    """Say what a kubelet says again and again: without that, a node is given up after 50 seconds."""
    ready = {"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": now()}
    await objects.patch("nodes", node, {"status": {"conditions": [ready]}}, how="strategic", part="status")


@pytest.fixture
async def lost_node(objects: Objects) -> AsyncIterator[str]:
    """A node without a kubelet, so that the test can take it away; named to be the last of all."""
    name = "zz-sandpod-lost"
    room = {"cpu": "4", "memory": "8Gi", "pods": "10", "ephemeral-storage": "10Gi"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {LOST: "true"}},
        "spec": {"taints": [{"key": LOST, "effect": "NoSchedule"}]},
    }
    await objects.put(node)
    try:
        status = {"capacity": room, "allocatable": room}
        await objects.patch("nodes", name, {"status": status}, how="strategic", part="status")
        await beat(objects, name)
        yield name
    finally:
        await objects.delete("nodes", name)
        with suppress(RefusedError):  # It may be gone already.
            await objects.delete("pods", "lost", grace=0)


async def test_sandbox_that_uses_up_its_memory_is_told_so_by_the_kernels_word(objects: Objects) -> None:
    sizes = {"workspace": {"size": "128Mi"}, "tmpSize": "128Mi", "resources": {"memory": "128Mi"}}
    await objects.template("small", **sizes)
    await objects.sandbox("memory", templateRef={"name": "small"})
    await objects.phase("memory", "Ready")
    python = ("python3", "-I", "-c", FILL_MEMORY)
    # A node does not always report the end of an exec at once, and the sandbox is kept for some seconds only.
    fill = objects.cluster.kubectl("exec", "memory", "-n", objects.namespace, "--", *python, check=False)
    filling = asyncio.create_task(fill)
    status = await objects.phase("memory", "Failed")
    [why] = [c for c in status["conditions"] if c["type"] == "Ready"]
    # The kernel's word, unless the node has missed it, as it does now and then.
    words = {"OutOfMemory": "ran out of memory", "PodFailed": "was killed, and the node does not say why"}
    assert words[why["reason"]] in why["message"]
    await filling


async def test_drained_sandbox_is_told_to_be_evicted_and_by_whom(objects: Objects) -> None:
    await objects.sandbox("drained")
    await objects.phase("drained", "Ready")
    evict = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "drained", "namespace": objects.namespace},
    }
    path = f"/api/v1/namespaces/{objects.namespace}/pods/drained/eviction"
    await asyncio.to_thread(call, "POST", path, evict)
    assert "Eviction API" in await objects.reason("drained", "Evicted", within=60)


async def test_sandbox_of_a_node_that_is_given_up_is_told_to_be_lost_and_why(objects: Objects, lost_node: str) -> None:
    await objects.template("there", nodeSelector={LOST: "true"}, tolerations=[{"key": LOST, "effect": "NoSchedule"}])
    await objects.sandbox("lost", templateRef={"name": "there"})

    seen: list[Any] = []

    async def bound() -> bool:
        await beat(objects, lost_node)
        pod, node = await objects.cluster.get("pods", "lost"), await objects.cluster.get("nodes", lost_node)
        seen[:] = [pod.get("status"), node["spec"], node["status"]["conditions"]]
        return bool(pod) and pod["spec"].get("nodeName") == lost_node

    try:
        await until("the pod has that node", bound, within=60)
    except ClusterError as error:
        raise ClusterError(f"{error}; the pod's status, the node's spec and conditions are {seen}") from error
    # What its kubelet would say.
    state = {"running": {"startedAt": now()}}
    container = {"name": "sandbox", "image": "x", "imageID": "", "ready": True, "started": True, "restartCount": 0}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": now()}
    status = {"phase": "Running", "conditions": [ready], "containerStatuses": [{**container, "state": state}]}
    await objects.patch("pods", "lost", {"status": status}, how="strategic", part="status")
    await objects.phase("lost", "Ready")
    taints = [{"key": LOST, "effect": "NoSchedule"}, {"key": LOST, "value": "gone", "effect": "NoExecute"}]
    await objects.patch("nodes", lost_node, {"spec": {"taints": taints}})
    assert "aint" in await objects.reason("lost", "NodeLost", within=60)


@pytest.fixture
async def broken(objects: Objects) -> AsyncIterator[None]:
    await on_every_node(objects.cluster, MEND + BREAK)
    yield
    await on_every_node(objects.cluster, MEND)


@pytest.mark.usefixtures("broken")
async def test_start_that_the_runtime_fails_is_tried_once_more_and_a_second_failure_is_final(
    objects: Objects, operator: OperatorProcess
) -> None:
    before = operator.writes()["create", "Pod"]
    for name in ("fails-1", "fails-2"):
        await objects.sandbox(name)
    # What has failed is soon gone.
    status, failed = await asyncio.gather(objects.phase("fails-1", "Ready"), objects.phase("fails-2", "Failed"))
    assert "retriedPod" not in status
    [why] = [c for c in failed["conditions"] if c["type"] == "Ready"]
    assert why["reason"] == "StartFailed"
    assert WORDS in why["message"]

    # Two pods for each and no third.
    assert operator.writes()["create", "Pod"] == before + 4
    for name, end in (("fails-1", "Ready"), ("fails-2", "StartFailed")):

        async def reported(name: str = name, end: str = end) -> bool:
            return await objects.event_reasons(name) == sorted(["PodCreated", "StartRetried", end])

        await until(f"the events of {name}", reported, within=60)


async def test_sandbox_that_fills_the_nodes_disk_is_evicted_and_told_what_ran_out(
    objects: Objects, full_disk: str
) -> None:
    # By its event: the Sandbox itself may be gone when this is asked.
    assert "limit" in await objects.event(full_disk, "Evicted", within=240)
    await objects.gone("sandboxes", full_disk)
