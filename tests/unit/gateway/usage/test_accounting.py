"""What killed gateways did not live to write down is found, and what ended with them is charged up to their end."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.runs import accounting
from sandpod_gateway.settings import Settings
from sandpod_gateway.usage import live, replica
from sandpod_gateway.usage.amounts import SECOND, Account
from sandpod_gateway.usage.document import BackgroundRun, Document, SandboxUse, decode
from sandpod_gateway.usage.stores import LIVE, USAGE, FolderStore
from support.gateway.usage_store import MemoryStore

LOCAL = Account("", "local", "")
AGE = timedelta(minutes=2)
LASTING = "import time\ntime.sleep(3600)"


def gateway(backend: FakeBackend, store: MemoryStore) -> Gateway:
    backend.usage_store = lambda: store  # type: ignore[assignment,method-assign]
    return Gateway(Settings(), backend)


@asynccontextmanager
async def after_a_kill(age: timedelta, left: str = USAGE) -> AsyncIterator[tuple[list[Gateway], dict[str, Any]]]:
    """Give two gateways, and a run that a third one began in a sandbox that it had claimed, and wrote down nowhere.

    What it has `left` is an earlier document, which one of them has just folded, or deleted.
    """
    backend, store = FakeBackend(clock=lambda: datetime.now(UTC) - age), MemoryStore()
    gateways = [gateway(backend, MemoryStore()), gateway(backend, store), gateway(backend, store)]
    async with AsyncExitStack() as stack:
        for each in gateways:
            await stack.enter_async_context(each.running())
        client = await stack.enter_async_context(Client(gateways[0].mcp))
        begun = await client.call_tool("start_run", {"code": LASTING, "language": "python"})
        assert begun.structured_content is not None
        document = Document("gone", seq=1).encode() if left == USAGE else live.encode({}, 1, 0.0)
        await store.write(f"{left}gone", document, None)
        for each in gateways[1:]:
            kept = each._accounting._replica
            assert kept is not None
            kept._take(await store.read())
            kept._since[f"{left}gone"] = float("-inf")
            await kept.keep_now()
        assert f"{left}gone" not in store.documents
        yield gateways[1:], begun.structured_content


@pytest.mark.promise("usage-kept")
@pytest.mark.parametrize("left", [USAGE, LIVE])
async def test_sandbox_and_run_that_their_gateway_did_not_live_to_write_down_are_found_by_its_heir(left: str) -> None:
    async with after_a_kill(AGE, left) as (gateways, run):
        for _ in range(2):
            for each in gateways:
                await each._accounting.charge_background()
        [heir] = [each for each in gateways if each._sandboxes.meter.document.live]
        meter = heir._sandboxes.meter
        assert meter.document.live == {run["sandbox"]}
        assert list(meter.ongoing.background) == [run["run_id"]]
        assert not meter.ongoing.inherited
        await heir._accounting.charge_sandboxes()
        [row] = meter.document.rows.values()
        assert row.wall >= AGE.total_seconds() * SECOND
        assert meter.document.background[run["run_id"]].account == meter.document.sandboxes[run["sandbox"]].account
        assert meter.document.sandboxes[run["sandbox"]].account.user == "local"


async def test_what_is_young_may_be_about_to_be_written_and_full_documents_have_forgotten_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with after_a_kill(timedelta(0)) as (gateways, run):
        for each in gateways:
            await each._accounting.charge_background()
            assert not each._sandboxes.meter.document.live
            meter = each._sandboxes.meter
            meter.claimed(LOCAL, run["sandbox"], "default", meter.clock())
            meter.ongoing.inherited.add(run["sandbox"])
            with monkeypatch.context() as patched:
                patched.setattr(accounting, "ADOPT_SECONDS", 2 * time.time())  # older than that the run can't be
                await each._accounting.charge_background()
            assert (meter.ongoing.background, meter.ongoing.inherited) == ({}, {run["sandbox"]})
            meter.closed(run["sandbox"])
    monkeypatch.setattr(accounting, "MAX_SANDBOXES", 0)
    async with after_a_kill(AGE) as (gateways, _):
        for each in gateways:
            await each._accounting.charge_background()
            assert not each._sandboxes.meter.document.live


async def test_local_runs_are_charged_up_to_the_end_of_the_gateway_that_they_ended_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "GONE_SECONDS", 0.0)
    began = round(time.time() - 1000) * SECOND
    killed = Document("gone", seq=1)
    killed.sandboxes["sbx-a"] = SandboxUse(LOCAL, "default", began, until=began + 100 * SECOND)
    killed.background["sbx-a.run-1"] = BackgroundRun(LOCAL, "sbx-a", began + 40 * SECOND, began + 3600 * SECOND)
    (tmp_path / f"{USAGE}gone.json").write_bytes(killed.encode())
    settings = Settings.model_validate({"usage": {"directory": tmp_path}})
    heir = Gateway(settings, FakeBackend())
    async with heir.running(), Client(heir.mcp) as client:
        kept = heir._accounting._replica
        assert kept is not None
        for _ in range(2):
            await kept.keep_now()
        assert list(heir._sandboxes.meter.ongoing.background) == ["sbx-a.run-1"]
        await heir._accounting.charge_background()
        await heir._accounting.charge_sandboxes()
        [row] = heir._sandboxes.meter.document.rows.values()
        assert (row.cpu, row.runs) == (60 * SECOND, 1)
        await client.call_tool("start_run", {"code": LASTING, "language": "python"})
    [left] = [decode(each.content) for name, each in FolderStore(tmp_path).read_now().items() if name.startswith(USAGE)]
    assert (left.background, left.live, left.closed) == ({}, set(), True)
    assert sum(row.runs for row in left.rows.values()) == 2
