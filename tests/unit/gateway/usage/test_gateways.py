"""Two gateways of one installation, as callers meet their limits, and `sandpod usage` afterwards."""

import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client

from fakes.backend import FakeBackend
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.api_keys import KeyFile, make_key
from sandpod_gateway.cli import main
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.settings import Settings
from sandpod_gateway.usage.amounts import Account, Amounts
from sandpod_gateway.usage.document import Document, SandboxUse, decode
from sandpod_gateway.usage.report import report
from sandpod_gateway.usage.stores import USAGE
from support.gateway.server import listening
from support.gateway.usage_store import MemoryStore


class Pair:
    """Clients of two gateways that share a store and nothing else."""

    def __init__(self, gateways: list[Gateway], clients: list[Client[Any]], store: MemoryStore) -> None:
        self.gateways, self.clients, self.store = gateways, clients, store

    async def call(self, number: int, tool: str, /, **arguments: Any) -> dict[str, Any]:
        answer = await self.clients[number].call_tool(tool, arguments, raise_on_error=False)
        assert isinstance(answer.structured_content, dict)
        return answer.structured_content

    async def share(self) -> None:
        """Let each take in what the other one has, which takes a second at the most by itself."""
        replicas = [
            gateway._accounting._replica for gateway in self.gateways if gateway._accounting._replica is not None
        ]
        assert len(replicas) == 2
        for replica in replicas:
            await replica.publish_now()
            await replica.keep_now()
        for replica in replicas:
            replica._take(await self.store.read())


@asynccontextmanager
async def two(**limits: Any) -> AsyncIterator[Pair]:
    store = MemoryStore()
    backend = FakeBackend()
    backend.usage_store = lambda: store  # type: ignore[assignment,method-assign]
    settings = Settings.model_validate({"quotas": limits})
    gateways = [Gateway(settings, backend) for _ in range(2)]
    async with AsyncExitStack() as stack:
        for gateway in gateways:
            await stack.enter_async_context(gateway.running())
        clients = [await stack.enter_async_context(Client(gateway.mcp)) for gateway in gateways]
        yield Pair(gateways, clients, store)


@pytest.mark.promise("limits-shared")
async def test_calls_runs_and_sandboxes_are_limited_over_both() -> None:
    async with two(per_user={"calls_per_minute": 9, "sandboxes": 2}, per_key={"cpu_seconds_per_day": 100}) as pair:
        made = [(await pair.call(number, "create_sandbox"))["sandbox"] for number in range(2)]
        await pair.share()
        refused = await pair.call(0, "create_sandbox")
        assert refused["error"] == "quota_exceeded"
        assert refused["message"] == "You have 2 live sandboxes, the most that are allowed."
        assert "retry_after_seconds" not in refused
        await pair.call(1, "close_sandbox", sandbox=made[0])
        again = await pair.call(1, "create_sandbox")
        assert "sandbox" in again
        await pair.share()
        for number in range(4):
            assert "error" not in await pair.call(number % 2, "list_sandboxes")
        await pair.share()
        late = await pair.call(1, "list_sandboxes")
        assert late["error"] == "rate_limited"
        assert 0 < late["retry_after_seconds"] <= 60
        assert late["next"] == f"Try again in {late['retry_after_seconds']} seconds."


async def test_nothing_is_made_for_a_run_that_is_over_the_limit() -> None:
    async with two(per_user={"bytes_per_day": 20}) as pair:
        done = await pair.call(0, "run_python_code", code="print('a' * 1)" + " " * 20)
        assert "error" not in done
        await pair.call(0, "close_sandbox", sandbox=done["sandbox"])
        await pair.share()
        for tool, arguments in (
            ("run_python_code", {"code": "1"}),
            ("start_run", {"code": "1", "language": "python"}),
            ("write_file", {"path": "a", "text": "b"}),
        ):
            refused = await pair.call(1, tool, **arguments)
            assert (refused["error"], 0 < refused["retry_after_seconds"] <= 86_400) == ("quota_exceeded", True), tool
        assert (await pair.call(1, "list_sandboxes"))["sandboxes"] == []


async def test_upload_over_a_link_is_limited_with_retry_after(tmp_path: Path) -> None:
    key, entry = make_key(user="alice", name="ci", days=None, now=datetime.now(UTC))
    (tmp_path / "keys.yaml").write_bytes(KeyFile(keys=[entry]).dump())
    flags = {
        "auth": {"keys_file": tmp_path / "keys.yaml"},
        "quotas": {"keys": {"alice/ci": {"upload_bytes_per_day": 100}}},
        "port": 0,
    }
    settings = Settings.model_validate(flags)
    gateway = Gateway(settings, FakeBackend())
    async with listening(gateway, settings) as address, Client(f"{address}/mcp", auth=key) as client:
        made = await client.call_tool("create_link", {"path": "a.bin", "method": "put"})
        assert made.structured_content is not None
        async with httpx2.AsyncClient() as http:
            assert (await http.put(made.structured_content["url"], content=b"x" * 60)).status_code == 201
            refused = await http.put(made.structured_content["url"], content=b"x" * 60)
    assert (refused.status_code, refused.json()["error"]) == (507, "quota_exceeded")
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    row = gateway._sandboxes.meter.document.rows[next(iter(gateway._sandboxes.meter.document.rows))]
    assert (row.uploads, row.bytes_in) == (60, 60)
    assert list(gateway._sandboxes.meter.document.keys) == [entry.id]


async def test_sandbox_that_nobody_knows_of_yet_goes_on_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two() as pair:
        run = await pair.call(0, "start_run", code="1", language="python")
        gateway = pair.gateways[0]
        document = gateway._sandboxes.meter.document

        async def get(name: str) -> None:
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, f"{name}'s tenant starts.", next_step="Wait.")

        with monkeypatch.context() as patched:
            patched.setattr(gateway._backend, "get", get)
            await gateway._accounting.charge_sandboxes()
            await gateway._accounting.charge_background()
        assert document.sandboxes[run["sandbox"]].until is not None
        assert list(document.background) == [run["run_id"]]


@pytest.mark.promise("usage-kept")
async def test_usage_outlives_the_gateways() -> None:
    async with two() as pair:
        for number in range(2):
            assert "error" not in await pair.call(number, "run_python_code", code="print('hello')", fresh=True)
    [row] = report(
        [decode(each.content) for name, each in pair.store.documents.items() if name.startswith(USAGE)]
    ).objects()
    assert (row["user"], row["runs"], row["calls"], row["bytes_out"]) == ("local", 2, 2, 12)
    assert row["bytes_in"] == 2 * len("print('hello')")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Usage of two gateways, one of which has folded a third one's, which is still there."""
    first, second, gone = (Document(name) for name in ("first", "second", "gone"))
    for day in ("2026-11-29", "2026-11-30"):
        for document in (first, second, gone):
            document.charge(day, Account("lab", "=alice", "ci"), Amounts(cpu=1_500_000, wall=10**7, busy=10**6, runs=1))
    second.charge("2026-11-30", Account("lab", "bob", "ci"), Amounts(memory=2_000_000, bytes_in=7))
    second.sandboxes["sbx-a"] = SandboxUse(Account("lab", "bob", "ci"), "default", 1_795_000_000_000_000, until=1)
    first.fold(gone)
    for document in (first, second, gone):
        (tmp_path / f"{USAGE}{document.replica}.json").write_bytes(document.encode())
    return tmp_path


@pytest.fixture
def usage(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr("sys.argv", ["sandpod", "usage", "--directory", str(folder), *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
        printed = capsys.readouterr()
        assert ended.value.code == code, printed
        return printed.err if code else printed.out

    return run


def test_report_counts_each_document_once_and_names_units(usage: Any) -> None:
    rows = json.loads(usage("--output", "json"))
    assert [(row["day"], row["user"], row["runs"]) for row in rows] == [
        ("2026-11-29", "=alice", 3),
        ("2026-11-30", "=alice", 3),
        ("2026-11-30", "bob", 0),
    ]
    assert (rows[0]["cpu_seconds"], rows[0]["wall_seconds"], rows[0]["idle_seconds"]) == (4.5, 30, 27)
    assert (rows[2]["memory_gib_seconds"], rows[2]["bytes_in"]) == (2, 7)
    assert len(json.loads(usage("--output", "json", "--since", "2026-11-30"))) == 2
    [_, tenant] = json.loads(usage("--output", "json", "--by", "tenant"))
    assert (tenant["tenant"], tenant["runs"]) == ("lab", 3)


def test_csv_is_for_spreadsheets_and_has_no_formulas(usage: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(usage("--output", "csv", "--by", "key"))))
    assert [row["user"] for row in rows] == ["'=alice", "'=alice", "bob"]
    assert rows[0]["cpu_seconds"] == "4.5"


def test_table_has_a_row_for_each_sandbox(usage: Any) -> None:
    head, row = usage("--by", "sandbox").splitlines()
    assert head.split()[:7] == ["CLAIMED", "TENANT", "USER", "KEY", "SANDBOX", "TEMPLATE", "LIVE"]
    assert row.split()[:7] == ["2026-11-18T11:06:40Z", "lab", "bob", "ci", "sbx-a", "default", "yes"]


def test_wrong_arguments_of_the_report_are_refused(usage: Any, folder: Path) -> None:
    assert "since is a day such as 2026-11-30." in usage("--since", "yesterday", code=main.EXIT_REFUSED)
    (folder / f"{USAGE}x.json").write_text("{}")
    assert "usage-x can't be read" in usage(code=main.EXIT_REFUSED)
