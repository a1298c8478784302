"""All gateways are replaced behind a proxy, one after another, while callers go on: no call fails, and no run ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from support.background import read_until
from support.cluster.callers import Caller, Session
from support.cluster.cluster import Cluster, until

PAUSE = 0.1  # seconds between two calls of one caller: load, and connections that are idle when a gateway ends
WAITS = (
    "import os, time\nprint('tick', flush=True)\nwhile not os.path.exists('rolled'): time.sleep(0.05)\nprint('done')\n"
)


@dataclass
class Load:
    """Callers who call again and again.

    Attributes:
        answers: How many calls were answered as they should be.
        failures: What else came, or was raised.
    """

    sandbox: str
    answers: int = 0
    failures: list[str] = field(default_factory=list)

    async def call(self, session: Session, number: int) -> None:
        try:
            reply = await session.python(f"print({number})", sandbox=self.sandbox)
        except Exception as error:  # noqa: BLE001  # whatever a caller would see
            self.failures.append(repr(error))
            return
        if reply.data.get("stdout") == f"{number}\n":
            self.answers += 1
        else:
            self.failures.append(repr(reply))

    async def keep_calling(self, caller: Caller) -> None:
        """Call over connections that are kept."""
        async with caller.connect() as session:
            for number in range(1_000_000):
                await self.call(session, number)
                await asyncio.sleep(PAUSE)

    async def keep_connecting(self, caller: Caller) -> None:
        """Call as one who comes for the first time, each time."""
        for number in range(1_000_000):
            try:
                async with caller.connect() as session:
                    await self.call(session, number)
            except Exception as error:  # noqa: BLE001  # as above
                self.failures.append(repr(error))
            await asyncio.sleep(PAUSE)


@asynccontextmanager
async def load(caller: Caller, sandbox: str) -> AsyncIterator[Load]:
    made = Load(sandbox)
    tasks = [asyncio.create_task(made.keep_calling(caller)) for _ in range(2)]
    tasks.append(asyncio.create_task(made.keep_connecting(caller)))
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)


@pytest.mark.promise("rolling-update")
async def test_rolling_update_of_the_gateways_fails_no_call_and_ends_no_run(
    proxied: Caller, cluster: Cluster, sandbox: str
) -> None:
    old = set(await cluster.component_pods("gateway"))
    assert len(old) > 1
    async with proxied.connect() as session, load(proxied, sandbox) as made:
        lasting = await session.call("start_run", code=WAITS, sandbox=sandbox, timeout=600)
        await read_until(session.call, lasting["run_id"], "tick\n")
        begun = asyncio.Event()

        async def listen(text: str) -> None:
            if "tick" in text:
                begun.set()

        run = asyncio.create_task(session.python(WAITS, sandbox=sandbox, timeout=45, on_output=listen))
        async with asyncio.timeout(60):
            await begun.wait()
        await cluster.kubectl("rollout", "restart", "deployment/sandpod-gateway", "-n", cluster.namespace)
        await cluster.rollout("gateway")
        async with proxied.connect() as later:  # at a new one, while an old one waits for its last call
            await later.call("write_file", path="rolled", text="", sandbox=sandbox)
            assert (await run)["stdout"] == "tick\ndone\n"
            ended = await read_until(later.call, lasting["run_id"])
            assert (ended["result"]["outcome"], ended["stdout"]) == ("ok", "tick\ndone\n")
            await later.call("delete_file", path="rolled", sandbox=sandbox)

        async def gone() -> bool:
            pods = await cluster.items(
                "pods", namespace=cluster.namespace, selector="app.kubernetes.io/component=gateway"
            )
            return not old & {pod["metadata"]["name"] for pod in pods}

        await until("the old gateways have ended", gone, within=90)
        await later_than(made)
    assert made.failures == []


async def later_than(made: Load) -> None:
    """Return when each caller has got an answer since now."""
    before = made.answers

    async def answered() -> bool:
        return made.answers >= before + 6 or bool(made.failures)

    await until("callers go on", answered, within=60)
