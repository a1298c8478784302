"""Warm sandboxes: claimed without waiting for a pod, never by two, and made anew."""

import asyncio
from contextlib import AsyncExitStack, ExitStack

from support.cluster.callers import Caller, Session
from support.cluster.cluster import Cluster, forwarded, until
from support.cluster.scraping import Series, scrape
from support.operator.process import Objects


def grown(before: Series, after: Series, name: str, **labels: str) -> float:
    return after[name, frozenset(labels.items())] - before[name, frozenset(labels.items())]


async def test_sandbox_was_warm_before_it_is_claimed_and_the_pool_refills(session: Session, cluster: Cluster) -> None:
    warm = await cluster.pool_is_full()
    before = await scrape(cluster, "gateway", 8081)
    sandbox = await session.create(name="claimed")
    assert sandbox in warm
    assert (await session.python("print('first output')", sandbox=sandbox))["stdout"] == "first output\n"
    pod = await cluster.pod_of(sandbox)
    assert pod["status"]["startTime"] <= (await cluster.sandbox(sandbox))["spec"]["claim"]["time"]
    after = await scrape(cluster, "gateway", 8081)
    assert grown(before, after, "sandpod_claims_total", how="warm", code="") == 1
    assert after["sandpod_open_streams", frozenset()] >= 1
    seen = await session.call("get_sandbox", sandbox=sandbox)
    assert (seen["status"], seen["name"], seen["network"]) == ("Ready", "claimed", "none")
    assert sandbox in await listed(session)

    assert (await session.close(sandbox))["closed"] is True
    assert (await session.python("print(1)", sandbox=sandbox)).error == "session_not_found"
    assert sandbox not in await listed(session)
    await Objects(cluster=cluster).gone("pods", pod["metadata"]["name"])
    assert sandbox not in await cluster.pool_is_full()

    async def full_again() -> bool:
        # Each of the two gateways tells what it sees: two warm sandboxes.
        series = await scrape(cluster, "gateway", 8081)
        return series["sandpod_warm_sandboxes", frozenset({("tenant", ""), ("template", "default")})] == 4

    await until("both gateways see the full pool", full_again, within=60)


async def listed(session: Session) -> set[str]:
    return {each["sandbox"] for each in (await session.call("list_sandboxes"))["sandboxes"]}


async def test_two_gateways_never_claim_the_same_sandbox(cluster: Cluster, keys: dict[str, str]) -> None:
    await cluster.pool_is_full()
    gateways = await cluster.component_pods("gateway")
    assert len(gateways) == 2
    async with AsyncExitStack() as stack:
        with ExitStack() as tunnels:
            ports = [tunnels.enter_context(forwarded(cluster.namespace, f"pod/{pod}", 8000)) for pod in gateways]
            callers = [Caller(f"http://127.0.0.1:{port}/mcp", keys["alice"]) for port in ports]
            sessions = [await stack.enter_async_context(caller.connect()) for caller in callers]
            handles = await asyncio.gather(*(sessions[i % 2].create(name=f"race-{i}") for i in range(2)))
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
    assert len(set(handles)) == 2
    assert read == handles


async def test_name_that_is_taken_gives_the_same_sandbox_to_racing_calls(session: Session) -> None:
    handles = await asyncio.gather(*(session.create(name="same") for _ in range(4)))
    await session.close(handles[0])
    assert len(set(handles)) == 1
