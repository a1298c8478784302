"""Installations at two gateways of one sandbox: any of them answers, whichever carries one out, or none any more."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client

from fakes.backend import FakeBackend
from fakes.installer import FakeInstaller
from sandpod_gateway.app import Gateway
from sandpod_gateway.packages.pip.packages import PythonPackages, Wheels
from sandpod_gateway.settings import Settings
from support.gateway.peers import until


@dataclass
class Index:
    """Has version 1.0 of every package.

    Attributes:
        open: Resolutions wait for it.
        asked: What was resolved, in order.
    """

    open: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)

    async def resolve(self, wanted: list[Any]) -> Wheels:
        self.asked += [each.name for each in wanted]
        await self.open.wait()
        files = [
            {"metadata": {"name": each.name, "version": "1.0"}, "download_info": {"url": f"http://index/{each.name}"}}
            for each in wanted
        ]
        return Wheels.model_validate({"install": files})

    async def download(self, packages: list[Any], folder: Path) -> list[Path]:
        paths = [folder / each.name for each in packages]
        for path in paths:
            await asyncio.to_thread(path.write_bytes, path.name.encode() * 100_000)
        return paths


class Pair:
    """Two gateways and their clients, over one backend with one sandbox."""

    def __init__(self, gateways: list[Gateway], clients: list[Client[Any]], backend: FakeBackend, index: Index) -> None:
        self.gateways, self.clients, self.backend, self.index = gateways, clients, backend, index
        self.sandbox = ""

    async def call(self, number: int, tool: str, /, **arguments: Any) -> dict[str, Any]:
        answer = await self.clients[number].call_tool(tool, arguments, raise_on_error=False)
        assert isinstance(answer.structured_content, dict)
        return answer.structured_content

    async def install(self, number: int, *packages: str, wait: float = 60) -> dict[str, Any]:
        return await self.call(number, "install_packages", packages=list(packages), sandbox=self.sandbox, wait=wait)

    async def get(self, number: int, installation: str, wait: float = 60) -> dict[str, Any]:
        return await self.call(number, "get_installation", installation=installation, wait=wait)

    @property
    def installer(self) -> FakeInstaller:
        return self.backend.runner(self.sandbox).installer


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    index, backend = Index(), FakeBackend()
    index.open.set()
    monkeypatch.setattr(PythonPackages, "_resolve", lambda _self, wanted, *_: index.resolve(wanted))
    monkeypatch.setattr(
        PythonPackages, "_download", lambda _self, packages, _, folder: index.download(packages, folder)
    )
    settings = Settings.model_validate({"tools": ["all"], "compat": {"systems": ["johanli233"]}})
    gateways = [Gateway(settings, backend) for _ in range(2)]
    async with AsyncExitStack() as stack:
        for gateway in gateways:
            await stack.enter_async_context(gateway.running())
        clients = [await stack.enter_async_context(Client(gateway.mcp)) for gateway in gateways]
        made = Pair(gateways, clients, backend, index)
        made.sandbox = (await made.call(0, "run_python_code", code="print(1)"))["sandbox"]
        yield made


def failed(installation: dict[str, Any]) -> tuple[str, str]:
    assert (installation["status"], installation["packages"]) == ("failed", [])
    assert installation["message"]
    assert installation["next"]
    return installation["error"], installation["next"]


@pytest.mark.promise("installations-anywhere")
async def test_an_equal_installation_is_joined_and_both_gateways_say_the_same_of_it(pair: Pair) -> None:
    pair.index.open.clear()
    first = await pair.install(0, "greet", "helper", wait=0)
    second = await pair.install(1, "helper", "greet", wait=0)
    assert (first["status"], first["packages"], second["installation"]) == ("installing", [], first["installation"])
    waiting = [asyncio.create_task(pair.get(number, first["installation"])) for number in range(2)]
    run = asyncio.create_task(
        pair.call(1, "run_python_code", code="print(1)", sandbox=pair.sandbox, packages=["greet", "helper"])
    )
    assert (await pair.get(1, first["installation"], wait=0))["status"] == "installing"
    pair.index.open.set()
    one, other = [await each for each in waiting]
    assert one == other
    assert (one["status"], one["sandbox"]) == ("success", pair.sandbox)
    assert [(each["name"], each["version"]) for each in one["packages"]] == [("greet", "1.0"), ("helper", "1.0")]
    assert one["elapsed"] >= first["elapsed"]
    assert (await run)["stdout"] == "1\n"
    assert (pair.index.asked, pair.installer.orders) == (["greet", "helper"], [["greet", "helper"]])
    assert await pair.get(1, first["installation"], wait=0) == one


async def test_gateways_install_one_after_the_other_in_one_sandbox(pair: Pair) -> None:
    pair.index.open.clear()
    first = await pair.install(0, "first", wait=0)
    await until(lambda: pair.index.asked == ["first"])
    # A program that waits for its turn has not seen what is installed: it would not know that this comes first.
    second = await pair.install(1, "first", "second", wait=0)
    assert pair.installer.turn.locked()
    assert pair.index.asked == ["first"]
    pair.index.open.set()
    assert (await pair.get(1, first["installation"]))["status"] == "success"
    assert (await pair.get(0, second["installation"]))["status"] == "success"
    assert pair.installer.orders == [["first"], ["second"]]


async def test_no_more_than_eight_go_on_in_a_sandbox_at_whichever_gateways(pair: Pair) -> None:
    pair.index.open.clear()
    begun = [await pair.install(number % 2, f"package{number}", wait=0) for number in range(8)]
    for number in range(2):
        refused = await pair.install(number, "one-more", wait=0)
        assert (refused["error"], "get_installation" in refused["next"]) == ("rate_limited", True)
        assert (await pair.install(number, "package0", wait=0))["installation"] == begun[0]["installation"]
    pair.index.open.set()
    assert {(await pair.get(1, each["installation"]))["status"] for each in begun} == {"success"}
    assert (await pair.install(0, "one-more"))["status"] == "success"


@pytest.mark.promise("installations-anywhere")
async def test_one_whose_gateway_is_gone_is_told_to_be_interrupted_and_can_be_begun_again(pair: Pair) -> None:
    pair.index.open.clear()
    begun = await pair.install(0, "greet", wait=0)
    await until(lambda: pair.index.asked == ["greet"])
    waiting = asyncio.create_task(pair.get(1, begun["installation"]))
    await pair.backend.drop_streams(pair.sandbox)  # the runner ends what nobody attends to
    assert failed(await waiting) == ("cancelled", "Call install_packages again.")
    assert not pair.installer.turn.locked()
    pair.index.open.set()
    again = await pair.install(1, "greet")
    assert (again["status"], again["installation"] != begun["installation"]) == ("success", True)
    assert failed(await pair.get(0, begun["installation"]))[0] == "cancelled"


async def test_a_gateway_that_ends_lets_installations_finish_in_the_time_that_it_has(pair: Pair) -> None:
    pair.index.open.clear()
    begun = await pair.install(0, "greet", wait=0)
    assert not await pair.gateways[0].finish(0)
    finishing = asyncio.create_task(pair.gateways[0].finish(60))
    pair.index.open.set()
    assert await finishing
    assert (await pair.get(1, begun["installation"], wait=0))["status"] == "success"


async def test_what_a_gateway_leaves_undone_is_marked_before_it_ends(pair: Pair) -> None:
    pair.index.open.clear()
    begun = await pair.install(0, "greet", wait=0)
    await until(lambda: pair.index.asked == ["greet"])
    waiting = await pair.install(0, "second", wait=0)
    await pair.gateways[0]._installer.close()
    for each in (begun, waiting):
        assert failed(await pair.get(1, each["installation"], wait=0)) == ("cancelled", "Call install_packages again.")
    assert not pair.installer.turn.locked()


async def test_failure_is_told_by_both_gateways_and_a_retry_begins_anew(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("unexpected")

    with monkeypatch.context() as patch:
        patch.setattr(PythonPackages, "_resolve", fail)
        begun = await pair.install(0, "greet")
    assert failed(begun)[0] == "backend_error"
    assert "unexpected" not in str(begun)
    assert await pair.get(1, begun["installation"]) == begun
    assert (await pair.install(0, "greet"))["status"] == "success"


def said(**fields: Any) -> bytes:
    return base64.b64encode(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "says",
    [
        b"",
        b"no base64!",
        base64.b64encode(b"[]"),
        said(elapsed=-1),
        said(elapsed=1, error={"error": "of-its-own", "message": "m", "next": "n"}),
        said(elapsed=1, error={"error": "timeout", "message": "m" * 100_000, "next": "n"}),
        said(elapsed=1, packages=[{"name": "a\nb", "version": "1"}]),
        said(elapsed=1, packages=[{"name": "a", "version": "1" * 1000}]),
        said(elapsed=1, packages=[{"name": "a", "version": "1"}] * 5001),
        said(elapsed=1, note="n" * 100_000),
        b"A" * 3_000_000,
    ],
)
async def test_what_no_gateway_has_said_of_an_installation_is_not_taken_from_its_sandbox(
    pair: Pair, says: bytes
) -> None:
    pair.installer.says = says
    done = await pair.install(0, "greet")
    assert failed(done)[0] == "execution_failed"
    assert await pair.get(1, done["installation"]) == done


@pytest.mark.parametrize("name", ["", "x", "inst-0", "{sandbox}", "{sandbox}.run-1", "{sandbox}.inst-1", "{other}"])
async def test_what_is_no_installation_is_not_found(pair: Pair, name: str) -> None:
    other = f"{pair.sandbox}.inst-{'0' * 16}-{'0' * 11}-{'0' * 8}"
    missing = await pair.get(0, name.format(sandbox=pair.sandbox, other=other), wait=0)
    assert (missing["error"], "install_packages" in missing["next"]) == ("not_found", True)


async def test_an_installation_of_a_closed_sandbox_is_not_found(pair: Pair) -> None:
    done = await pair.install(0, "greet")
    await pair.call(1, "close_sandbox", sandbox=pair.sandbox)
    assert [(await pair.get(number, done["installation"]))["error"] for number in range(2)] == ["not_found"] * 2


async def test_status_of_another_systems_tool_is_known_at_both_gateways(pair: Pair) -> None:
    fields = {"sandbox_id": pair.sandbox, "package_name": "greet"}
    assert (await pair.call(1, "check_package_installation_status", **fields))["status"] == "not_found"
    assert (await pair.call(0, "install_package_in_sandbox", **fields))["status"] == "success"
    assert (await pair.call(1, "check_package_installation_status", **fields))["status"] == "success"
