"""A sandbox that is suspended again and again, while callers at two gateways go on to use it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from support.cluster.callers import Caller, Session
from support.cluster.server import serving
from support.operator.process import Managed, Objects

CALLS = 5  # at once
WAITS = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(1)\n"


@pytest.fixture(scope="module")
def objects(managed_namespaces: Managed) -> Objects:
    own = managed_namespaces.namespaces["suspended"]
    bounds = {"maxSize": "32Mi", "persistent": True}
    asyncio.run(own.template("default", workspace={"size": "16Mi"}, workspaceLimits=bounds))
    return own


@pytest.fixture
async def sessions(objects: Objects) -> AsyncIterator[tuple[Session, Session]]:
    """Connections to two gateways, whose callers are the same."""
    flags = ["--backend", "kubernetes", "--kubernetes.namespace", objects.namespace]
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(serving(*flags)) for _ in range(2)]
        one, other = [await stack.enter_async_context(Caller(url, None).connect()) for url, _ in both]
        yield one, other


async def suspend(objects: Objects, sandbox: str) -> None:
    await objects.patch("sandboxes", sandbox, {"spec": {"operatingMode": "Suspended"}})


async def write(sandbox: str, number: int, sessions: tuple[Session, Session]) -> None:
    """Have a line written by each of several calls at once, at both gateways."""
    commands = [f"echo {number}-{each} >> lines" for each in range(CALLS)]
    calls = [
        sessions[each % 2].call("run_shell_command", command=command, sandbox=sandbox)
        for each, command in enumerate(commands)
    ]
    replies = await asyncio.gather(*calls)
    assert [reply.data.get("outcome") for reply in replies] == ["ok"] * CALLS, replies


async def test_calls_at_both_gateways_resume_it_each_time_and_nothing_that_was_written_is_lost(
    objects: Objects, sessions: tuple[Session, Session]
) -> None:
    one, other = sessions
    sandbox = await one.create(workspace={"persistent": True}, lifetime={"ttl": 3600})
    await suspend(objects, sandbox)
    await write(sandbox, 0, sessions)  # before its pod is gone

    begun = asyncio.Event()

    async def hear(_: str) -> None:
        begun.set()

    run = asyncio.create_task(other.python(WAITS, sandbox=sandbox, on_output=hear, timeout=600))
    async with asyncio.timeout(60):
        await begun.wait()
    await objects.quota(pods="0")
    await suspend(objects, sandbox)
    async with asyncio.timeout(60):
        ended = await run
    assert (ended["outcome"], ended["stdout"]) == ("sandbox_lost", "begun\n")
    assert ended["hint"].startswith("The sandbox was stopped while the program ran, and the program with it.")
    refused = await one.call("read_file", path="lines", sandbox=sandbox)
    assert (refused.error, refused["message"]) == (
        "quota_exceeded",
        "The namespace's quota leaves no room for the pod.",
    )

    await objects.delete("resourcequotas", "quota")
    await write(sandbox, 1, sessions)
    kept = await other.call("read_file", path="lines", sandbox=sandbox)
    assert sorted(kept["content"].split()) == [f"{number}-{each}" for number in range(2) for each in range(CALLS)]
    assert [pod["metadata"]["name"] for pod in await objects.cluster.items("pods")] == [sandbox]
    await one.close(sandbox)
