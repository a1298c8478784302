"""A gateway is killed in the middle of runs: all that they used is charged once, also what they go on to use."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client

from sandpod_gateway.app import Gateway
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.settings import Settings
from sandpod_gateway.usage import replica
from sandpod_gateway.usage.document import Document, decode
from sandpod_gateway.usage.report import report
from sandpod_gateway.usage.stores import USAGE, FolderStore
from support.gateway.outliving import OutlivingBackend, killable
from support.gateway.peer import until
from support.runner.harness import running

# Uses its processor until it is stopped, and says how far it has come; it tells nothing while it is stopped.
BURN = "import time\nprint('x' * 1000, flush=True)\nwhile True:\n    sum(range(100_000))\n"
SHELL = "echo begun; while :; do :; done"
SHORT_GRACE = "from sandpod_runner.runs import registry; registry.ORPHAN_GRACE = 0.2"
UNTIL = "import os\nwhile not os.path.exists('go'): sum(range(100_000))\n"


def documents(folder: Path) -> list[Document]:
    kept = FolderStore(folder / "usage").read_now()
    return [decode(each.content) for name, each in kept.items() if name.startswith(USAGE)]


def used(folder: Path) -> dict[str, Any]:
    [row] = report(documents(folder)).objects()
    return row


async def begun(client: Client[Any], tool: str, **arguments: Any) -> asyncio.Task[Any]:
    """Begin a call, and return once its program has written something."""
    first = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        if message:
            first.set()

    call = asyncio.create_task(client.call_tool(tool, arguments, progress_handler=note, raise_on_error=False))
    waiting = asyncio.create_task(first.wait())
    await asyncio.wait({call, waiting}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert first.is_set(), "it has not begun"
    return call


async def end_of(gateway: Gateway, record: SandboxRecord, run: str) -> dict[str, Any]:
    """Return how a run has ended, once it has, by its runner's own account."""
    async with gateway._sandboxes.connection(record, use=False) as connection:

        async def look() -> dict[str, Any] | None:
            fields = {"run": run.rpartition(".")[2], "cursor": 0, "limit": 1, "wait": 1.0}
            end: dict[str, Any] | None = (await connection.ask("tail", fields)).header["end"]
            return end

        return await until("the program has ended", look)


@pytest.mark.promise("usage-kept")
async def test_what_runs_use_counts_once_though_their_gateway_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, prelude=SHORT_GRACE) as runner:
        async with killable(tmp_path) as (process, address), Client(f"{address}/mcp") as client:
            short = (await client.call_tool("run_python_code", {"code": "print('x' * 100)"})).structured_content
            assert short is not None
            attended = [
                await begun(client, "run_python_code", code=BURN, timeout=300),
                await begun(client, "run_python_code", code=BURN, timeout=300, context="cells"),
                await begun(client, "run_shell_command", command=SHELL, timeout=300),
            ]
            # A background run is written down at once, and with it all that goes on.
            await client.call_tool("start_run", {"code": UNTIL, "language": "python"})

            async def is_kept() -> bool:
                return any(len(each.background) == len(attended) + 1 for each in documents(tmp_path))

            await until("all runs are written down", is_kept)
            process.kill()
            await process.wait()
            await asyncio.gather(*attended, return_exceptions=True)
            with contextlib.suppress(Exception):
                await client.close()
        [left] = documents(tmp_path)
        [sandbox] = left.live
        before = used(tmp_path)
        assert before["runs"] == 1, "the others have not ended"

        monkeypatch.setattr(replica, "GONE_SECONDS", 0.0)
        heir = Gateway(Settings(), OutlivingBackend(tmp_path, sandbox))
        async with heir.running():
            meter, accounting = heir._sandboxes.meter, heir._accounting
            kept = accounting._replica
            assert kept is not None
            await kept.keep_now()  # its own document comes first
            await kept.keep_now()
            runs = sorted(meter.ongoing.background)
            assert runs == sorted(left.background)

            (runner.workspace / "go").touch()
            record = await heir._backend.get(sandbox)
            assert record is not None
            told = [await end_of(heir, record, run) for run in runs]

            async def are_charged() -> bool:
                await accounting.charge_background()
                return not meter.ongoing.background

            await until("all runs are charged", are_charged)
            await accounting.charge_background()
    after = used(tmp_path)
    assert sorted(end["outcome"] for end in told) == ["cancelled"] * 3 + ["ok"]
    assert after["runs"] == 1 + len(runs)
    spent = sum(end["cpu_ms"] for end in told) / 1e3
    assert all(end["cpu_ms"] for end in told)
    assert after["cpu_seconds"] == pytest.approx(short["cpu_ms"] / 1e3 + spent, abs=0.01)
    assert after["bytes_out"] == 101 + sum(end["stdout_bytes"] + end["stderr_bytes"] for end in told)
    code = "print('x' * 100)"
    assert after["bytes_in"] == len(code) + 2 * len(BURN) + len(SHELL) + len(UNTIL)
    assert after["user"] == before["user"]
