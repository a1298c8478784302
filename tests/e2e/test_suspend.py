"""Persistent workspaces on real volume claims: suspended, woken by a call, and gone with their Sandbox."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from support.cluster.callers import Caller
from support.cluster.cluster import Cluster, until
from support.operator.process import IMAGE, Objects, OperatorProcess, running

KEPT = {"size": "16Mi", "persistent": True}


@pytest.fixture(scope="module")
def operator(objects: Objects, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with running(tmp_path_factory.mktemp("operator") / "log", objects.namespace) as made:
        asyncio.run(objects.template())
        yield made


async def change(objects: Objects, name: str, **spec: object) -> None:
    patch = json.dumps({"spec": spec})
    await objects.cluster.kubectl("patch", "sbx", name, "-n", objects.namespace, "--type=merge", "-p", patch)


@pytest.mark.usefixtures("operator")
async def test_idle_sandbox_loses_its_pod_keeps_its_files_and_goes_whole(objects: Objects) -> None:
    await objects.sandbox("kept", workspace=KEPT, lifetime={"ttl": 600, "idleTimeout": 600})
    await objects.phase("kept", "Ready", within=120)
    await objects.cluster.in_pod("kept", "open('/workspace/note', 'w').write('still here')")
    await change(objects, "kept", lifetime={"ttl": 600, "idleTimeout": 1})
    status = await objects.phase("kept", "Suspended")
    assert {(c["type"], c["status"]) for c in status["conditions"]} >= {("Suspended", "True"), ("Ready", "False")}
    await objects.gone("pods", "kept")
    await change(objects, "kept", operatingMode="Running", lifetime={"ttl": 600, "idleTimeout": 600})
    status = await objects.phase("kept", "Ready")
    assert ("NetworkIsolated", "True", "Probed") in {
        (c["type"], c["status"], c["reason"]) for c in status["conditions"]
    }
    assert await objects.cluster.in_pod("kept", "print(open('/workspace/note').read())") == "still here\n"

    async def told() -> str:
        text = await objects.cluster.kubectl("describe", "sbx", "kept", "-n", objects.namespace)
        return text if "Idle for 1 s" in text and "Resumed" in text else ""

    await until("the story in describe", told, within=60)
    [claim] = await objects.cluster.items("persistentvolumeclaims")
    await objects.cluster.kubectl("delete", "sbx", "kept", "-n", objects.namespace)
    await objects.gone("persistentvolumeclaims", claim["metadata"]["name"])


@pytest.mark.usefixtures("operator")
async def test_loss_of_the_volume_claim_ends_the_sandbox_and_says_so(objects: Objects) -> None:
    await objects.sandbox("lost", workspace=KEPT, lifetime={"ttl": 600, "idleTimeout": 600})
    await objects.phase("lost", "Ready", within=120)
    await change(objects, "lost", operatingMode="Suspended")
    await objects.gone("pods", "lost")
    claims = await objects.cluster.items("persistentvolumeclaims")
    [claim] = [c["metadata"]["name"] for c in claims if c["metadata"]["name"][:4] == "lost"]
    await objects.cluster.kubectl("delete", "pvc", claim, "-n", objects.namespace)
    await change(objects, "lost", operatingMode="Running")
    assert claim in await objects.reason("lost", "WorkspaceLost", within=60)
    assert (await objects.phase("lost", "Failed"))["volumeClaim"] == claim


@pytest.mark.usefixtures("operator")
async def test_volume_that_no_storage_class_gives_is_told(objects: Objects) -> None:
    await objects.sandbox("no-class", workspace={**KEPT, "storageClassName": "no-such-class"})
    assert "PersistentVolumeClaim" in await objects.reason("no-class", "Unschedulable", within=60)


@pytest.fixture
async def lasting(cluster: Cluster) -> AsyncIterator[str]:
    """A template of the installed gateway that has persistent workspaces to ask for."""
    objects = Objects(cluster=cluster)
    bounds = {"maxSize": "32Mi", "persistent": True}
    await objects.template("lasting", image=IMAGE, workspace={"size": "16Mi"}, workspaceLimits=bounds)
    yield "lasting"
    await cluster.kubectl("delete", "sbxt", "lasting", "-n", cluster.sandboxes)


@pytest.mark.claim("create_sandbox(workspace.persistent)")
async def test_call_wakes_a_suspended_sandbox_with_its_files(alice: Caller, cluster: Cluster, lasting: str) -> None:
    async with alice.connect() as session:
        large = await session.call("create_sandbox", template=lasting, workspace={"size": 2**30})
        assert large.error == "invalid_argument"
        name = await session.create(
            template=lasting, workspace={"persistent": True}, lifetime={"ttl": 900, "idle_timeout": 8}
        )
        try:
            await session.call("write_file", sandbox=name, path="note.txt", text="still here")
            assert (await session.python("x = 1", sandbox=name, context="c")).data["outcome"] == "ok"

            async def suspended() -> bool:
                return bool((await session.call("get_sandbox", sandbox=name))["status"] == "Suspended")

            await until("the idle sandbox is suspended", suspended, within=60)
            both = await asyncio.gather(*(session.call("read_file", sandbox=name, path="note.txt") for _ in range(2)))
            assert [reply.data.get("content") for reply in both] == ["still here", "still here"], both
            again = await session.python("x", sandbox=name, context="c")
            assert "NameError" in again["stderr"]
            assert "was suspended" in again["hint"]
            assert (await cluster.sandbox(name))["spec"]["operatingMode"] == "Running"
        finally:
            await session.close(name)
