"""The programs in examples/, as the documentation shows them, against a server with local sandboxes."""

import asyncio
import os
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OUTPUT = {
    "hello.py": "while it runs: line 2\nresult: ok 'line 0\\nline 1\\nline 2\\n'\n",
    "contexts.py": "average: 5.333333333333333\n",
    "background.py": "epoch 0\nepoch 1\nepoch 2\nended: ok\n",
    "files.py": "rows: 3\n",
    "client.py": "2\n",
    "client_async.py": "sum: 6\nsum: 42\nok all summed\n",
}

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.needs_userns,
    pytest.mark.usefixtures("served"),  # which closes what they leave
]


@pytest.mark.parametrize("program", sorted(path.name for path in EXAMPLES.glob("*.py")))
async def test_program_prints_what_it_should(
    program: str, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SANDPOD_URL", f"{address}/mcp")
    await asyncio.to_thread(runpy.run_path, str(EXAMPLES / program), run_name="__main__")
    assert capsys.readouterr().out.endswith(OUTPUT[program])


async def test_script_uses_the_rest_api(address: str) -> None:
    environment = {**os.environ, "SANDPOD_API": f"{address}/api/v1"}
    script = await asyncio.create_subprocess_exec(
        "sh", str(EXAMPLES / "rest.sh"), env=environment, stdout=asyncio.subprocess.PIPE
    )
    out = (await script.communicate())[0].decode()
    assert script.returncode == 0
    assert '"stdout":"42\\n"' in out
    assert 'event: result\ndata: {"sandbox"' in out
    assert '"stdout": "0\\n1\\n2\\n"' in out
    assert out.endswith("a file\n")


async def test_script_uses_the_command_line(address: str) -> None:
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    script = await asyncio.create_subprocess_exec(
        *("sh", str(EXAMPLES / "cli.sh")),
        env={**os.environ, "SANDPOD_URL": address, "PATH": folders},
        stdout=asyncio.subprocess.PIPE,
    )
    out = (await script.communicate())[0].decode()
    assert (script.returncode, out) == (0, "work/numbers.txt\nwork/sorted.txt\n['1', '2', '3']\nHELLO\n")
