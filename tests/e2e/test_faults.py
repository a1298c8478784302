"""Parts are killed in the middle of a run. The caller gets a coded answer, and nothing is left behind."""

import asyncio
import contextlib
from typing import Any

import pytest

from support.background import read_until
from support.cluster.callers import Caller, Reply, Session
from support.cluster.cluster import Cluster, until
from support.operator.process import Objects

TICKS = "import time\nfor i in range(1000):\n    print('tick', i, flush=True)\n    time.sleep(0.2)\n"
# Ends when a file is there.
WAITS = "import os, time\nprint('tick', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\nprint('done')\n"


async def started(session: Session, sandbox: str, code: str) -> asyncio.Task[Reply]:
    """Start a run and return once its first output is here."""
    first = asyncio.Event()

    async def listen(text: str) -> None:
        if "tick" in text:
            first.set()

    run = asyncio.create_task(session.python(code, sandbox=sandbox, timeout=120, on_output=listen))
    async with asyncio.timeout(60):
        await first.wait()
    return run


async def no_orphans(cluster: Cluster) -> None:
    """Wait until every pod belongs to a Sandbox that exists, and every Sandbox has one pod at most."""

    async def look() -> bool:
        sandboxes = {s["metadata"]["uid"] for s in await cluster.items("sandboxes")}
        owners = [
            owner["uid"]
            for pod in await cluster.items("pods")
            for owner in pod["metadata"].get("ownerReferences", [{"uid": "nobody"}])
        ]
        return len(owners) == len(set(owners)) and set(owners) <= sandboxes

    await until("no pod without its Sandbox", look, within=90)


@pytest.mark.promise("end-known")
async def test_killed_sandbox_pod_ends_the_run_as_sandbox_lost(session: Session, brief: str, cluster: Cluster) -> None:
    run = await started(session, brief, TICKS)
    pod = (await cluster.pod_of(brief))["metadata"]["name"]
    await cluster.kubectl("delete", "pod", pod, "-n", cluster.sandboxes, "--force", "--grace-period=0")
    async with asyncio.timeout(60):
        reply = await run
    assert "sandbox_lost" in {reply.error, reply.data.get("outcome")}, reply
    again = await session.python("print(1)", sandbox=brief)
    assert again.error in {"sandbox_lost", "session_not_found"}, again
    await session.close(brief)
    await no_orphans(cluster)


@pytest.mark.claim("instructions", "start_run")
async def test_killed_gateway_loses_the_call_but_not_the_sandbox_and_not_its_background_run(
    alice: Caller, cluster: Cluster, sandbox: str
) -> None:
    async with alice.connect() as before:
        await before.call("write_file", path="kept.txt", text="kept", sandbox=sandbox)
        lasting = await before.call("start_run", code=TICKS, sandbox=sandbox, timeout=900)
        first = await read_until(before.call, lasting["run_id"], "tick 0\n")
        run = await started(before, sandbox, TICKS)
        gateways = await cluster.component_pods("gateway")
        await cluster.kubectl("delete", "pod", *gateways, "-n", cluster.namespace, "--force", "--grace-period=0")
        with contextlib.suppress(Exception):  # the connection is gone in the middle of a call: any error is right
            async with asyncio.timeout(60):
                await run
    await cluster.rollout("gateway")

    async def reconnected() -> Any:
        with contextlib.suppress(Exception):
            async with alice.connect() as after:
                reply = await after.python("print(open('kept.txt').read())", sandbox=sandbox)
                return reply if reply.error != "backend_unavailable" else None
        return None

    reply = await until("a new gateway answers", reconnected, within=60)
    assert reply["stdout"] == "kept\n"
    async with alice.connect() as after:
        later = await after.call("read_run", run_id=lasting["run_id"], cursor=first["cursor"], wait=10)
        assert (later["state"], later["stdout"][:1]) == ("running", "t"), later
        stopped = await after.call("stop_run", run_id=lasting["run_id"])
        assert stopped["result"]["outcome"] == "cancelled", stopped
    annotations = (await cluster.sandbox(sandbox))["metadata"]["annotations"]
    assert annotations["sandpod.dev/busy-until"] > annotations["sandpod.dev/last-activity"]
    await no_orphans(cluster)


async def test_killed_operator_disturbs_no_run_and_its_work_is_taken_over(
    session: Session, sandbox: str, cluster: Cluster
) -> None:
    run = await started(session, sandbox, WAITS)
    operators = await cluster.component_pods("operator")
    await cluster.kubectl("delete", "pod", *operators, "-n", cluster.namespace, "--force", "--grace-period=0")
    closed = await session.create(name="closed-meanwhile")
    await session.close(closed)
    await session.call("write_file", path="go", text="", sandbox=sandbox)
    reply = await run
    assert (reply["outcome"], reply["stdout"].endswith("done\n")) == ("ok", True)
    await session.call("delete_file", path="go", sandbox=sandbox)
    await cluster.rollout("operator")
    await cluster.pool_is_full(within=180)
    await no_orphans(cluster)


@pytest.mark.promise("lifetime")
async def test_sandbox_past_its_lifetime_ends_and_says_so(session: Session, cluster: Cluster) -> None:
    # From the pool, since a pod's start counts as well.
    await cluster.pool_is_full()
    sandbox = await session.create(name="short", lifetime={"ttl": 10, "idle_timeout": 10})
    pod = (await cluster.pod_of(sandbox))["metadata"]["name"]
    await Objects(cluster=cluster).gone("pods", pod, within=90)
    reply = await session.python("print(1)", sandbox=sandbox)
    assert reply.error in {"sandbox_lost", "session_not_found"}, reply
    await no_orphans(cluster)
