"""Installations at two gateways of the same sandboxes, as a team's endpoint has them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastmcp import Client

from sandpod_gateway.app import Gateway
from sandpod_gateway.backends.factory import create_backend
from sandpod_gateway.packages.sandbox import PART
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.settings import load
from support.gateway.peers import until
from support.gateway.served import LOCAL, Served
from support.gateway.server import listening
from support.servers.package_index import Index, package_index, wheel

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]


class Member(Served):
    """A caller of one of the gateways."""

    gateway: Gateway
    stack: AsyncExitStack

    async def install(self, name: str, wait: float = 120) -> dict[str, Any]:
        return await self.call("install_packages", packages=[name], wait=wait)

    async def get(self, begun: dict[str, Any], wait: float = 120) -> dict[str, Any]:
        return await self.call("get_installation", installation=begun["installation"], wait=wait)


@asynccontextmanager
async def team() -> AsyncIterator[tuple[Member, Member, Index]]:
    async def nothing() -> None:
        """The backend is there before any gateway, and after it."""

    async with AsyncExitStack() as stack:
        index = stack.enter_context(package_index())
        settings = load([*LOCAL, "--packages.index-url", index.url], config=None, program="sandpod serve")
        backend = create_backend("local", local=settings.local)
        await backend.start()
        stack.push_async_callback(backend.close)
        backend.start = backend.close = nothing  # type: ignore[method-assign]
        members = []
        for _ in range(2):
            gateway, own = Gateway(settings, backend), AsyncExitStack()
            stack.push_async_exit(own)
            address = await own.enter_async_context(listening(gateway, settings))
            client = await own.enter_async_context(Client(f"{address}/mcp"))
            member = Member(client, await own.enter_async_context(httpx2.AsyncClient()))
            member.gateway, member.stack = gateway, own
            members.append(member)
        yield members[0], members[1], index


async def begin_and_lose_the_stream(member: Member, index: Index, name: str) -> dict[str, Any]:
    """Begin an installation whose packages the index holds back, and cut its gateway's stream to the sandbox."""
    index.hold.clear()
    begun = await member.install(name, wait=0)
    await until(lambda: bool(index.asked))
    connection = member.gateway._sandboxes._slots[begun["sandbox"]].connection
    assert connection is not None
    await connection.close()
    return begun


@pytest.mark.promise("installations-anywhere")
async def test_any_gateway_knows_an_installation_and_joins_it_whichever_carries_it_out() -> None:
    async with team() as (one, other, index):
        index.add("greet", "1.0", content=wheel("greet", "1.0", needs=("helper",)))
        index.add("helper", "2.0")
        index.hold.clear()
        begun = await one.install("greet", wait=0)
        joined = await other.install("greet", wait=0)
        assert (joined["status"], joined["installation"]) == ("installing", begun["installation"])
        await until(lambda: bool(index.asked))
        assert (await other.get(begun, wait=0))["status"] == "installing"
        assert (await other.call("list_runs"))["runs"] == []
        # Another one has its turn after it.
        index.add("second", "1.0", content=wheel("second", "1.0", needs=("helper",)))
        next_one = await other.install("second", wait=1)
        assert (next_one["status"], "/simple/second/" in index.asked) == ("installing", False)
        index.hold.set()
        assert {each["name"] for each in (await one.get(next_one))["packages"]} == {"second", "helper"}
        assert index.asked.index("/simple/second/") > index.asked.index("/files/helper-2.0-py3-none-any.whl")
        done = await other.get(begun)
        assert done["status"] == "success"
        assert {each["name"]: each["version"] for each in done["packages"]} == {"greet": "1.0", "helper": "2.0"}
        assert all(each["sha256"] for each in done["packages"])
        assert await one.get(begun) == done
        asked = len(index.asked)
        seen = await other.python("import greet, helper\nprint(helper.VERSION)", packages=["greet"])
        assert (seen["stdout"], len(index.asked)) == ("2.0\n", asked)
        # What has failed is known too, and not joined.
        failed = await one.install("missing")
        assert (failed["status"], failed["error"]) == ("failed", "not_found")
        assert await other.get(failed) == failed
        index.add("missing", "1.0")
        assert (await other.install("missing"))["status"] == "success"


@pytest.mark.promise("installations-anywhere")
async def test_one_that_a_gateway_leaves_as_it_ends_is_known_to_be_interrupted_and_leaves_nothing() -> None:
    async with team() as (one, other, index):
        index.add("greet", "1.0")
        index.hold.clear()
        begun = await one.install("greet", wait=0)
        await until(lambda: bool(index.asked))
        await one.stack.aclose()
        index.hold.set()
        ended = await other.get(begun, wait=0)
        assert (ended["status"], ended["error"], ended["next"]) == (
            "failed",
            "cancelled",
            "Call install_packages again.",
        )
        assert (await other.python("import greet"))["outcome"] == "error"
        assert (await other.install("greet"))["status"] == "success"


@pytest.mark.promise("installations-anywhere")
async def test_one_that_its_gateway_has_lost_is_known_to_be_interrupted_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandpod_gateway.packages.talk._STREAMS", 1)
    async with team() as (one, other, index):
        index.add("greet", "1.0")
        begun = await begin_and_lose_the_stream(one, index, "greet")
        ended = await other.get(begun)
        assert (ended["status"], ended["error"]) == ("failed", "cancelled")
        again = asyncio.create_task(other.install("greet"))
        index.hold.set()
        assert (await again)["status"] == "success"


@pytest.mark.parametrize("pause", [0.0, 3.0], ids=["before packages are there", "after that"])
async def test_an_installation_goes_on_over_another_stream_while_it_waits_and_while_packages_are_sent(
    monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    monkeypatch.setattr("sandpod_gateway.packages.talk._PAUSE", pause)
    send = RunnerConnection.send_input
    cut: list[int] = []

    async def send_and_cut(self: RunnerConnection, run: str, part: bytes, offset: int, *, last: bool) -> None:
        await send(self, run, part, offset, last=last)
        if offset > 10 * PART and not cut:
            cut.append(offset)
            await self.close()

    monkeypatch.setattr(RunnerConnection, "send_input", send_and_cut)
    async with team() as (one, other, index):
        content = bytes(range(256)) * 4096 * 8
        index.add("big", "1.0", content=wheel("big", "1.0", files={"big/data.bin": content.hex()}, stored=True))
        begun = await begin_and_lose_the_stream(one, index, "big")
        index.hold.set()
        done = await other.get(begun)
        assert done["status"] == "success", str(done)
        assert len(cut) == 1
        read = "import big, pathlib\nprint(len((pathlib.Path(big.__file__).parent / 'data.bin').read_text()))"
        assert (await other.python(read))["stdout"] == f"{2 * len(content)}\n"
