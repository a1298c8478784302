"""What is charged is what programs used, by their own account of it."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from sandpod_gateway.cli import main
from support.gateway.served import Served, connected, gateway

BURN = """
import resource, sys
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
begun = used()
while used() - begun < {seconds}: pass
sys.stdout.write("x" * {size})
"""


def usage(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], by: str) -> dict[str, Any]:
    """Return the one row of `sandpod usage`."""
    command = ["sandpod", "usage", "--directory", str(folder), "--by", by, "--output", "csv"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit):
        main.main()
    [row] = csv.DictReader(io.StringIO(capsys.readouterr().out))
    return row


@pytest.mark.promise("usage-adds-up")
async def test_usage_is_what_the_programs_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = BURN.format(seconds=0.4, size=1000)
    later = BURN.format(seconds=0.3, size=200)
    folder = tmp_path / "usage"
    flags = ("--backend", "local", "--local.warm", "0", "--local.memory", "512Mi", "--usage.directory", str(folder))
    async with gateway(*flags) as address, connected(address, Served) as caller:
        done = await caller.python(code)
        begun = await caller.call("start_run", code=later, language="python")
        ended = await caller.call("read_run", run_id=begun["run_id"], until="end", wait=30)
        assert ended["result"]["outcome"] == done["outcome"] == "ok"
        await caller.call("write_file", path="a.txt", text="y" * 300)
        await caller.call("read_file", path="a.txt")
        await caller.call("close_sandbox", sandbox=done["sandbox"], force=True)
    row = usage(folder, monkeypatch, capsys, "user")
    told = (done["cpu_ms"] + ended["result"]["cpu_ms"]) / 1e3
    assert float(row["cpu_seconds"]) == pytest.approx(told, abs=0.002)
    # A program's own account ends before it does, and begins with it: what starting and ending take is the rest.
    assert 0.7 <= float(row["cpu_seconds"]) < 1.2
    assert (row["runs"], row["upload_bytes"], row["bytes_out"]) == ("2", "300", "1500")
    assert int(row["bytes_in"]) == len(code) + len(later) + 300
    by_sandbox = usage(folder, monkeypatch, capsys, "sandbox")
    assert (by_sandbox["sandbox"], by_sandbox["live"]) == (done["sandbox"], "no")
    for column in ("cpu_seconds", "wall_seconds", "memory_gib_seconds", "bytes_out", "runs"):
        assert by_sandbox[column] == row[column], column
    assert float(row["memory_gib_seconds"]) == pytest.approx(float(row["wall_seconds"]) / 2, abs=0.01)
    assert 0 <= float(row["idle_seconds"]) <= float(row["wall_seconds"]) - 0.7
