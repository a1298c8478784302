"""A RuntimeClass is not believed: which kernel a sandbox sees is proved before it is handed out."""

import json
from collections.abc import Iterator

import pytest

from support.cluster.callers import Session
from support.cluster.cluster import Cluster
from support.operator.process import IMAGE, Objects, run

CLASSES = {"sandpod-test-own": "runsc", "sandpod-test-shared": "test-handler"}
PREIMPORT = ["numpy", "pandas", "matplotlib.pyplot"]


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[Objects]:
    """The installed operator's namespace, with the RuntimeClasses in the cluster."""
    for name, handler in CLASSES.items():
        # Nodes say of gVisor's handler that it has user namespaces, and it starts no pod with one: nobody declares it.
        declared = {"sandpod.dev/user-namespaces": "true"} if handler == "test-handler" else {}
        metadata = {"name": name, "annotations": declared}
        made = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata, "handler": handler}
        run("apply", "-f", "-", stdin=json.dumps(made))
    yield Objects(cluster=cluster)
    run("delete", "sbxt", *CLASSES, "-n", cluster.sandboxes, "--ignore-not-found")
    run("delete", "runtimeclass", *CLASSES)


async def kernel(cluster: Cluster, name: str) -> tuple[str, str]:
    conditions = (await cluster.sandbox(name))["status"]["conditions"]
    return next((c["status"], c["message"]) for c in conditions if c["type"] == "KernelIsolated")


async def host_users(cluster: Cluster, name: str) -> bool | None:
    found: bool | None = (await cluster.get("pods", name))["spec"].get("hostUsers")
    return found


async def test_sandbox_under_gvisor_sees_a_kernel_of_its_own_and_works(
    cluster: Cluster, installed: Objects, session: Session
) -> None:
    """It says which kernel it sees, forks programs from one process that has its imports, and counts memory rightly."""
    [node, *_] = await cluster.items("nodes")
    if "runsc" not in {handler["name"] for handler in node["status"]["runtimeHandlers"]}:
        pytest.skip("the nodes of this cluster have no gVisor")
    template = "sandpod-test-own"
    spec = {"image": IMAGE, "runtimeClassName": template, "preimport": PREIMPORT, "resources": {"memory": "512Mi"}}
    await installed.apply("SandboxTemplate", template, **spec)
    sandbox = await session.create(template=template)
    assert await host_users(cluster, sandbox) is None
    status, message = await kernel(cluster, sandbox)
    assert status == "True"
    assert "The sandbox sees kernel" in message

    code = "import os, sys; print(os.getppid(), 'numpy' in sys.modules)"
    told = [(await session.python(code, sandbox=sandbox))["stdout"] for _ in range(5)]
    assert told[0].endswith(" True\n")
    assert set(told) == {told[0]}
    await memory_is_counted_as_the_pods_limit_counts_it(session, sandbox)
    await session.close(sandbox)


async def memory_is_counted_as_the_pods_limit_counts_it(session: Session, sandbox: str) -> None:
    """Imports and contexts fit, which map many files of the image; files in memory count, and a program ends for them.

    Counted wrongly, either programs would end that had room, or the node's kernel would end the whole sandbox.
    """
    for context in ("a", "b"):
        cells = [await session.python(code, sandbox=sandbox, context=context) for code in ("x = 1", "x")]
        assert [cell["outcome"] for cell in cells] == ["ok", "ok"]
    await session.call("restart_context", sandbox=sandbox, context="a")
    await session.call("restart_context", sandbox=sandbox, context="b")
    code = "file = open('large', 'wb')\nfor _ in range(100):\n    file.write(bytes(1 << 20))"
    assert (await session.python(code, sandbox=sandbox))["outcome"] == "ok"
    # Slowly: what is tried is the count, and not who is quicker.
    code = "import time\nheld = []\nwhile True:\n    held.append(b'x' * (1 << 20))\n    time.sleep(0.01)"
    assert (await session.python(code, sandbox=sandbox))["outcome"] == "out_of_memory"
    still = await session.python("import os; print(os.stat('large').st_size >> 20)", sandbox=sandbox)
    assert still["stdout"] == "100\n"


@pytest.mark.promise("own-kernel")
async def test_sandbox_that_sees_the_nodes_kernel_is_never_handed_out_and_its_status_says_why(
    cluster: Cluster, installed: Objects
) -> None:
    template = "sandpod-test-shared"
    await installed.apply("SandboxTemplate", template, image=IMAGE, runtimeClassName=template)
    await installed.sandbox("shared-kernel", templateRef={"name": template})
    sentence = await installed.reason("shared-kernel", "KernelShared")
    assert await host_users(cluster, "shared-kernel") is False
    assert "by its boot id" in sentence
    assert (await installed.status("shared-kernel"))["phase"] == "Failed"
    assert (await kernel(cluster, "shared-kernel"))[0] == "False"
    await installed.event("shared-kernel", "KernelShared")
    run("delete", "sbx", "shared-kernel", "-n", cluster.sandboxes)


async def test_sandbox_has_a_user_namespace_of_its_own_where_the_nodes_say_that_they_have_them(
    cluster: Cluster, session: Session, sandbox: str
) -> None:
    # Its template says nothing of that.
    assert await host_users(cluster, sandbox) is False
    # Seen from inside: root there is somebody else outside.
    reply = await session.python("print(open('/proc/self/uid_map').read())", sandbox=sandbox)
    inside, outside, _ = reply["stdout"].split()
    assert inside == "0"
    assert int(outside) > 0
