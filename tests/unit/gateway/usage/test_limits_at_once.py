"""Calls that come at the same moment pass no limit together. The claim of a sandbox holds them while they begin."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastmcp import Client

from fakes.backend import FakeBackend
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.callers import LOCAL
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.sandboxes.admission import claim
from sandpod_gateway.settings import Settings
from sandpod_gateway.usage.meter import Meter
from sandpod_gateway.usage.settings import QuotaSettings
from support.gateway.peers import PATIENCE, call, until


class Counting(FakeBackend):
    """Counts the claims that were asked for."""

    claims = 0

    def __init__(self) -> None:
        super().__init__()
        self.may_claim = asyncio.Event()
        self.may_claim.set()

    async def claim(self, request: ClaimRequest) -> SandboxRecord:
        self.claims += 1
        await self.may_claim.wait()
        return await super().claim(request)


@asynccontextmanager
async def limited(**limits: Any) -> AsyncIterator[tuple[Counting, Client[Any]]]:
    backend = Counting()
    gateway = Gateway(Settings.model_validate({"quotas": {"per_user": limits}}), backend)
    async with gateway.running(), Client(gateway.mcp) as client:
        yield backend, client


@pytest.mark.parametrize(("tool", "arguments"), [("run_python_code", {}), ("start_run", {"language": "python"})])
async def test_of_two_runs_at_once_one_is_refused_and_the_others_end_makes_room(
    tool: str, arguments: dict[str, Any]
) -> None:
    async with limited(concurrent_runs=1) as (backend, client), asyncio.timeout(PATIENCE):
        backend.launcher.gate.clear()
        calls = [asyncio.create_task(call(client, tool, code="1", **arguments)) for _ in range(2)]
        done, [other] = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        refused = done.pop().result()
        assert (refused["error"], refused["retry_after_seconds"]) == (ErrorCode.RATE_LIMITED, 5)
        assert refused["message"] == "You have 1 runs going on, the most that are allowed at a time."
        backend.launcher.gate.set()
        begun = await other
        assert "error" not in begun
        again = await call(client, tool, code="1", **arguments)
        assert again.get("error") == (ErrorCode.RATE_LIMITED if tool == "start_run" else None), "only one has ended"


async def test_two_first_calls_at_once_share_the_one_sandbox_that_there_may_be() -> None:
    async with limited(sandboxes=1) as (backend, client), asyncio.timeout(PATIENCE):
        backend.may_claim.clear()
        calls = [asyncio.create_task(call(client, "run_python_code", code="print(1)")) for _ in range(2)]
        await until(lambda: backend.claims == 1)
        for _ in range(1000):  # in which the other goes as far as it can
            await asyncio.sleep(0)
        backend.may_claim.set()
        answers = await asyncio.gather(*calls)
        assert [each.get("stdout") for each in answers] == ["1\n"] * 2
        assert len({each["sandbox"] for each in answers}) == 1


@pytest.mark.parametrize(("tool", "arguments"), [("run_python_code", {}), ("start_run", {"language": "python"})])
async def test_run_that_does_not_begin_gives_its_place_back(tool: str, arguments: dict[str, Any]) -> None:
    async with limited(concurrent_runs=1) as (backend, client):
        backend.refuse_claims(ErrorCode.POOL_EXHAUSTED)
        for _ in range(2):
            assert (await call(client, tool, code="1", **arguments))["error"] == ErrorCode.POOL_EXHAUSTED
        backend.refuse_claims(None)
        assert "error" not in await call(client, tool, code="1", **arguments)


async def test_of_two_uploads_at_once_that_are_too_many_one_is_refused() -> None:
    async with limited(upload_bytes_per_day=100) as (backend, client), asyncio.timeout(PATIENCE):
        backend.launcher.gate.clear()
        calls = [asyncio.create_task(call(client, "write_file", path=f"{n}", text="x" * 60)) for n in range(2)]
        await until(lambda: backend.claims == 2)  # each has found room for itself
        backend.launcher.gate.set()
        answers = await asyncio.gather(*calls)
        [refused] = [each for each in answers if "error" in each]
        assert refused["error"] == ErrorCode.QUOTA_EXCEEDED
        assert refused["message"] == "This is over the 40 bytes that are left of today's limit."
        [kept] = [each for each in answers if "error" not in each]
        listed = await call(client, "list_files")
        assert [entry["path"] for entry in listed["entries"]] == [kept["path"]]


async def test_read_that_is_over_what_is_left_is_refused() -> None:
    async with limited(bytes_per_day=100) as (_, client):
        await call(client, "write_file", path="a", text="x" * 40)
        answers = await asyncio.gather(*(call(client, "read_file", path="a") for _ in range(2)))
        assert sorted(each.get("error", "") for each in answers) == ["", ErrorCode.QUOTA_EXCEEDED]


class Halting(FakeBackend):
    """Halts at the first look at a sandbox until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()

    async def get(self, name: str) -> SandboxRecord | None:
        if not self.asked.is_set():
            self.asked.set()
            await self.goes_on.wait()
        return await super().get(name)


async def test_sandbox_that_came_while_others_were_looked_at_counts() -> None:
    backend = Halting()
    meter = Meter(QuotaSettings.model_validate({"per_user": {"sandboxes": 2}}), Metrics())
    await backend.start()
    request = ClaimRequest(owner=LOCAL.owner)
    async with asyncio.timeout(PATIENCE):
        await claim(backend, meter, request)
        late = asyncio.create_task(claim(backend, meter, request))
        await backend.asked.wait()
        await claim(backend, meter, request)
        backend.goes_on.set()
        with pytest.raises(SandpodError, match="You have 2 live sandboxes"):
            await late
    assert len(await backend.list(LOCAL.owner)) == 2
    await backend.close()
