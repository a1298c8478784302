"""A server that runs on this machine is found by the command line, until it ends."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from sandpod import running_server
from support.cluster.server import serving
from support.gateway.served import LOCAL

pytestmark = pytest.mark.needs_userns


async def cli(*command: str, state: Path) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(state), "XDG_STATE_HOME": str(state), "SANDPOD_KEY": "k"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sandpod", *command), env=environment, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_a_running_server_is_found_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with serving(*LOCAL) as (url, _):
        assert running_server.find() == url.removesuffix("/mcp")
        assert await cli("run", "-c", "open('kept', 'w').close(); print('here')", state=tmp_path) == "here\n"
        assert await cli("ls", state=tmp_path) == "kept\n"  # by another command, and at the same server
    assert running_server.find() is None
    assert list(running_server.folder().iterdir()) == []
