"""Persistent workspaces on real volume claims: suspended, woken by a call, and gone with their Sandbox."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from support.cluster.callers import Session
from support.cluster.cluster import Cluster, until
from support.operator.process import IMAGE, Objects


@pytest.fixture
async def objects(cluster: Cluster) -> AsyncIterator[Objects]:
    """The installed parts, with a template that has persistent workspaces to ask for."""
    objects = Objects(cluster=cluster)
    bounds = {"maxSize": "32Mi", "persistent": True}
    await objects.template("lasting", image=IMAGE, workspace={"size": "16Mi"}, workspaceLimits=bounds)
    yield objects
    await cluster.kubectl("delete", "sbxt", "lasting", "-n", cluster.sandboxes)


async def conditions(cluster: Cluster, sandbox: str) -> set[tuple[str, str, str]]:
    return {(c["type"], c["status"], c["reason"]) for c in (await cluster.sandbox(sandbox))["status"]["conditions"]}


async def change(objects: Objects, name: str, **spec: object) -> None:
    patch = json.dumps({"spec": spec})
    await objects.cluster.kubectl("patch", "sbx", name, "-n", objects.namespace, "--type=merge", "-p", patch)


@pytest.fixture
async def idle(session: Session, objects: Objects) -> AsyncIterator[str]:
    """A sandbox that was used, and then suspended because nobody did."""
    large = await session.call("create_sandbox", template="lasting", workspace={"size": 2**30})
    assert large.error == "invalid_argument"
    lifetime = {"ttl": 900, "idle_timeout": 5}
    name = await session.create(template="lasting", workspace={"persistent": True}, lifetime=lifetime)
    await session.call("write_file", sandbox=name, path="note.txt", text="still here")
    assert (await session.python("x = 1", sandbox=name, context="c")).data["outcome"] == "ok"
    await objects.phase(name, "Suspended")
    yield name
    await session.close(name)


@pytest.mark.claim("create_sandbox(workspace.persistent)")
async def test_idle_sandbox_loses_its_pod_is_woken_by_a_call_with_its_files_and_ends_with_its_volume_claim(
    session: Session, cluster: Cluster, objects: Objects, idle: str
) -> None:
    assert (await session.call("get_sandbox", sandbox=idle))["status"] == "Suspended"
    found = {(kind, status) for kind, status, _ in await conditions(cluster, idle)}
    assert found >= {("Suspended", "True"), ("Ready", "False")}
    await objects.gone("pods", idle)
    both = await asyncio.gather(*(session.call("read_file", sandbox=idle, path="note.txt") for _ in range(2)))
    assert [reply.data.get("content") for reply in both] == ["still here", "still here"], both
    assert ("NetworkIsolated", "True", "Probed") in await conditions(cluster, idle)
    again = await session.python("x", sandbox=idle, context="c")
    assert "NameError" in again["stderr"]
    assert "was suspended" in again["hint"]
    assert (await cluster.sandbox(idle))["spec"]["operatingMode"] == "Running"

    async def told() -> bool:
        text = await cluster.kubectl("describe", "sbx", idle, "-n", cluster.sandboxes)
        return "Idle for 5 s" in text and "Resumed" in text

    await until("the story in describe", told, within=60)

    await change(objects, idle, operatingMode="Suspended")
    await objects.gone("pods", idle)
    claim = (await objects.status(idle))["volumeClaim"]
    await cluster.kubectl("delete", "pvc", claim, "-n", cluster.sandboxes)
    await change(objects, idle, operatingMode="Running")
    assert claim in await objects.reason(idle, "WorkspaceLost", within=60)
    assert (await objects.phase(idle, "Failed"))["volumeClaim"] == claim


async def test_volume_that_no_storage_class_gives_is_told_and_its_claim_goes_with_the_sandbox(
    cluster: Cluster, objects: Objects
) -> None:
    workspace = {"size": "16Mi", "persistent": True, "storageClassName": "no-such-class"}
    await objects.sandbox("no-class", templateRef={"name": "lasting"}, workspace=workspace)
    assert "PersistentVolumeClaim" in await objects.reason("no-class", "Unschedulable", within=60)
    claims = [c["metadata"]["name"] for c in await cluster.items("persistentvolumeclaims")]
    [claim] = [name for name in claims if name.startswith("no-class")]
    await cluster.kubectl("delete", "sbx", "no-class", "-n", cluster.sandboxes)
    await objects.gone("persistentvolumeclaims", claim)
