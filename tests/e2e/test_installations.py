"""Installations of packages at several gateways over one cluster, one of which is killed."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from support.cluster.callers import Caller
from support.cluster.cluster import Cluster
from support.gateway.peers import until
from support.gateway.served import gateway
from support.ports import await_open, free_port
from support.servers.package_index import package_index, wheel

MAIN: Final = "from sandpod_gateway.cli.main import main; raise SystemExit(main())"


@asynccontextmanager
async def process(*flags: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Serve a gateway in a process of its own, which can be killed."""
    port = free_port("127.0.0.1")
    command = (sys.executable, "-c", MAIN, "serve", "--port", str(port), *flags)
    server = await asyncio.create_subprocess_exec(*command)
    try:
        await asyncio.to_thread(await_open, "127.0.0.1", port)
        yield f"http://127.0.0.1:{port}", server
    finally:
        if server.returncode is None:
            server.send_signal(signal.SIGKILL)
        await server.wait()


@pytest.mark.promise("installations-anywhere")
async def test_an_installation_is_known_at_another_gateway_and_has_failed_soon_after_its_own_is_killed(
    cluster: Cluster,
) -> None:
    with package_index() as index:
        index.add("greet", "1.0", content=wheel("greet", "1.0", needs=("helper",)))
        index.add("helper", "1.0")
        flags = ["--backend", "kubernetes", "--kubernetes.namespace", cluster.sandboxes]
        flags += ["--packages.index-url", index.url]
        async with gateway(*flags) as address, process(*flags) as (other, server):
            callers = Caller(f"{address}/mcp", None), Caller(f"{other}/mcp", None)
            async with callers[0].connect() as session:
                sandbox = await session.create()
                try:
                    await known_and_interrupted(callers, sandbox, index, server)
                finally:
                    await session.close(sandbox)


async def known_and_interrupted(
    callers: tuple[Caller, Caller], sandbox: str, index: Any, server: asyncio.subprocess.Process
) -> None:
    async with callers[0].connect() as one, callers[1].connect() as other:
        index.hold.clear()
        begun = await other.call("install_packages", packages=["greet"], sandbox=sandbox, wait=0)
        joined = await one.call("install_packages", packages=["greet"], sandbox=sandbox, wait=0)
        assert (joined["status"], joined["installation"]) == ("installing", begun["installation"])
        index.hold.set()
        done = await one.call("get_installation", installation=begun["installation"], wait=120)
        assert done["status"] == "success", done
        assert (await other.call("get_installation", installation=begun["installation"])).data == done.data

        index.add("late", "1.0")
        index.hold.clear()
        begun = await other.call("install_packages", packages=["late"], sandbox=sandbox, wait=0)
        await until(lambda: "/simple/late/" in index.asked)
        server.send_signal(signal.SIGKILL)
        ended = await one.call("get_installation", installation=begun["installation"], wait=60)
        assert (ended["status"], ended.error) == ("failed", "cancelled"), ended
        index.hold.set()
        again = await one.call("install_packages", packages=["late"], sandbox=sandbox, wait=120)
        assert again["status"] == "success", again
