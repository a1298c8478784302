"""A server that runs on this machine is found by the command line, until it ends."""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from sandpod import running_server
from support.cluster.cluster import until
from support.cluster.server import serving
from support.gateway.served import LOCAL

pytestmark = pytest.mark.needs_userns


async def cli(*command: str, state: Path, url: str = "") -> str:
    """Return what a command prints, which leaves no process behind."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(state), "XDG_STATE_HOME": str(state), "SANDPOD_KEY": "k"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sandpod", *command),
        env={**environment, "SANDPOD_URL": url},
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0

    async def gone() -> bool:
        return not in_session(process.pid)

    await until("nothing of it is left", gone, within=60)
    return out.decode()


def in_session(session: int) -> list[str]:
    """Return the programs of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            if int(rest.split()[3]) == session:
                found.append(name)
    return found


async def test_a_running_server_is_found_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with serving(*LOCAL) as (url, _):
        assert running_server.find() == url.removesuffix("/mcp")
        assert await cli("run", "-c", "open('kept', 'w').close(); print('here')", state=tmp_path) == "here\n"
        assert await cli("ls", state=tmp_path) == "kept\n"  # by another command, and at the same server
        # --local is a server of the command's own, whatever runs or is chosen, which ends with it.
        code = "import os; print(os.listdir(), 'own')"
        assert await cli("run", "--local", "-c", code, state=tmp_path, url="http://127.0.0.1:1") == "[] own\n"
    assert running_server.find() is None
    assert list(running_server.folder().iterdir()) == []
