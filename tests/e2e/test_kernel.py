"""A RuntimeClass is not believed: which kernel a sandbox sees is proved before it is handed out."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.cluster.callers import Session
from support.cluster.cluster import Cluster
from support.operator.process import IMAGE, Objects, namespace, run, running

CLASSES = {"sandpod-test-own": "runsc", "sandpod-test-shared": "test-handler"}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    for name, handler in CLASSES.items():
        # Nodes say of gVisor's handler that it has user namespaces, and it starts no pod with one: nobody declares it.
        declared = {"sandpod.dev/user-namespaces": "true"} if handler == "test-handler" else {}
        metadata = {"name": name, "annotations": declared}
        made = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata, "handler": handler}
        run("apply", "-f", "-", stdin=json.dumps(made))
    log = tmp_path_factory.mktemp("operator") / "log"
    with namespace("kernel") as there, running(log, there.sandboxes):
        yield Objects(cluster=there)
    run("delete", "runtimeclass", *CLASSES)


async def kernel(objects: Objects, name: str) -> tuple[str, str]:
    conditions = (await objects.status(name))["conditions"]
    return next((c["status"], c["message"]) for c in conditions if c["type"] == "KernelIsolated")


async def host_users(objects: Objects, name: str) -> bool | None:
    found: bool | None = (await objects.cluster.get("pods", name))["spec"].get("hostUsers")
    return found


async def need_gvisor(cluster: Cluster) -> None:
    [node, *_] = await cluster.items("nodes")
    if "runsc" not in {handler["name"] for handler in node["status"]["runtimeHandlers"]}:
        pytest.skip("the nodes of this cluster have no gVisor")


@asynccontextmanager
async def under_gvisor(cluster: Cluster, session: Session, **template: Any) -> AsyncIterator[str]:
    """Give a sandbox of the installed parts, made from a template of its own."""
    await need_gvisor(cluster)
    own = {"image": IMAGE, "runtimeClassName": "sandpod-test-own", **template}
    await Objects(cluster=cluster).apply("SandboxTemplate", "own", **own)
    try:
        sandbox = await session.create(template="own")
        yield sandbox
        await session.close(sandbox)
    finally:
        await cluster.kubectl("delete", "sbxt", "own", "-n", cluster.sandboxes)


async def test_sandbox_that_sees_a_kernel_of_its_own_is_ready_and_says_which(
    cluster: Cluster, objects: Objects
) -> None:
    await need_gvisor(cluster)
    await objects.apply("SandboxTemplate", "own", image=IMAGE, runtimeClassName="sandpod-test-own")
    await objects.sandbox("own", templateRef={"name": "own"})
    await objects.phase("own", "Ready", within=90)
    assert await host_users(objects, "own") is None
    status, message = await kernel(objects, "own")
    assert status == "True"
    assert "The sandbox sees kernel" in message


@pytest.mark.usefixtures("objects")
async def test_programs_under_gvisor_are_all_forked_from_one_process_that_has_its_imports(
    cluster: Cluster, session: Session
) -> None:
    async with under_gvisor(cluster, session, preimport=["numpy"]) as sandbox:
        code = "import os, sys; print(os.getppid(), 'numpy' in sys.modules)"
        told = [(await session.python(code, sandbox=sandbox))["stdout"] for _ in range(5)]
        assert told[0].endswith(" True\n")
        assert set(told) == {told[0]}


@pytest.mark.usefixtures("objects")
async def test_memory_under_gvisor_is_counted_as_the_pods_limit_counts_it(cluster: Cluster, session: Session) -> None:
    """Imports and contexts fit, which map many files of the image; files in memory count, and a program ends for them.

    Counted wrongly, either programs would end that had room, or the node's kernel would end the whole sandbox.
    """
    preimport = ["numpy", "pandas", "matplotlib.pyplot"]
    async with under_gvisor(cluster, session, preimport=preimport, resources={"memory": "512Mi"}) as sandbox:
        for context in ("a", "b"):
            cells = [await session.python(code, sandbox=sandbox, context=context) for code in ("x = 1", "x")]
            assert [cell["outcome"] for cell in cells] == ["ok", "ok"]
        await session.call("restart_context", sandbox=sandbox, context="a")
        await session.call("restart_context", sandbox=sandbox, context="b")
        code = "file = open('large', 'wb')\nfor _ in range(100):\n    file.write(bytes(1 << 20))"
        assert (await session.python(code, sandbox=sandbox))["outcome"] == "ok"
        # Slowly: what is tried is the count, and not who is quicker.
        code = "import time\nheld = []\nwhile True:\n    held.append(b'x' * (1 << 20))\n    time.sleep(0.01)"
        more = await session.python(code, sandbox=sandbox)
        assert more["outcome"] == "out_of_memory"
        still = await session.python("import os; print(os.stat('large').st_size >> 20)", sandbox=sandbox)
        assert still["stdout"] == "100\n"


@pytest.mark.promise("own-kernel")
async def test_sandbox_that_sees_the_nodes_kernel_is_never_handed_out_and_its_status_says_why(objects: Objects) -> None:
    await objects.apply("SandboxTemplate", "shared", image=IMAGE, runtimeClassName="sandpod-test-shared")
    await objects.sandbox("shared", templateRef={"name": "shared"})
    sentence = await objects.reason("shared", "KernelShared")
    assert await host_users(objects, "shared") is False
    assert "by its boot id" in sentence
    assert (await objects.status("shared"))["phase"] == "Failed"
    assert (await kernel(objects, "shared"))[0] == "False"
    events = await objects.cluster.kubectl("events", "--for", "sandbox/shared", "-n", objects.namespace)
    assert "KernelShared" in events


async def test_sandbox_has_a_user_namespace_of_its_own_where_the_nodes_say_that_they_have_them(
    objects: Objects, session: Session
) -> None:
    await objects.apply("SandboxTemplate", "plain", image=IMAGE)
    await objects.sandbox("plain", templateRef={"name": "plain"})
    await objects.phase("plain", "Ready", within=90)
    assert await host_users(objects, "plain") is False
    # Seen from inside, in the default template, which says nothing either: root there is somebody else outside.
    inside, outside, _ = (await session.python("print(open('/proc/self/uid_map').read())"))["stdout"].split()
    assert inside == "0"
    assert int(outside) > 0
