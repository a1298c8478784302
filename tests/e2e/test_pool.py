"""Warm sandboxes: claimed without waiting for a pod, never by two, and made anew."""

import asyncio
from contextlib import AsyncExitStack, ExitStack

from support.cluster.callers import Caller, Session
from support.cluster.cluster import Cluster, forwarded


async def test_claimed_sandbox_was_warm_before_and_the_pool_refills(session: Session, cluster: Cluster) -> None:
    warm = await cluster.pool_is_full()
    sandbox = await session.create(name="claimed")
    reply = await session.python("print('first output')", sandbox=sandbox)
    assert reply["stdout"] == "first output\n"
    assert sandbox in warm
    pod = await cluster.pod_of(sandbox)
    claim = (await cluster.sandbox(sandbox))["spec"]["claim"]["time"]
    assert pod["status"]["startTime"] <= claim
    assert sandbox not in await cluster.pool_is_full()
    await session.close(sandbox)


async def test_closed_sandbox_takes_its_pod_with_it_and_is_never_used_again(session: Session, cluster: Cluster) -> None:
    sandbox = await session.create(name="closed")
    pod = (await cluster.pod_of(sandbox))["metadata"]["name"]
    await session.close(sandbox)
    await cluster.kubectl("wait", f"pod/{pod}", "-n", cluster.sandboxes, "--for=delete", "--timeout=60s")
    assert sandbox not in await cluster.pool_is_full()


async def test_two_gateways_never_claim_the_same_sandbox(cluster: Cluster, keys: dict[str, str]) -> None:
    await cluster.pool_is_full()
    gateways = await cluster.component_pods("gateway")
    assert len(gateways) == 2
    async with AsyncExitStack() as stack:
        with ExitStack() as tunnels:
            ports = [tunnels.enter_context(forwarded(cluster.namespace, f"pod/{pod}", 8000)) for pod in gateways]
            callers = [Caller(f"http://127.0.0.1:{port}/mcp", keys["alice"]) for port in ports]
            sessions = [await stack.enter_async_context(caller.connect()) for caller in callers]
            handles = await asyncio.gather(*(sessions[i % 2].create(name=f"race-{i}") for i in range(4)))
            # What one gateway claimed, the other uses.
            written = [
                sessions[(i + 1) % 2].call("write_file", path="who", text=handle, sandbox=handle)
                for i, handle in enumerate(handles)
            ]
            await asyncio.gather(*written)
            reads = [sessions[0].call("read_file", path="who", sandbox=handle) for handle in handles]
            read = [reply["content"] for reply in await asyncio.gather(*reads)]
            await asyncio.gather(*(sessions[0].close(handle) for handle in handles))
            await stack.aclose()
    assert len(set(handles)) == 4
    assert read == handles


async def test_name_that_is_taken_gives_the_same_sandbox_to_racing_calls(session: Session) -> None:
    handles = await asyncio.gather(*(session.create(name="same") for _ in range(4)))
    await session.close(handles[0])
    assert len(set(handles)) == 1
