"""What programs do to their folders, and what is left of sandboxes and servers on this machine."""

import io
import os
import signal
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client

from support.cluster.server import serving
from support.gateway.backends import descendants
from support.gateway.peer import until
from support.gateway.served import Served

pytestmark = pytest.mark.needs_userns

FLAGS = ("--backend", "local", "--local.warm", "0")
LOCKED = (
    "mkdir -p ro/a no; echo x > ro/a/f; echo s > no/f; echo t > secret.txt;"
    "chmod 444 ro/a/f; chmod 555 ro/a ro; chmod 000 no secret.txt"
)


@asynccontextmanager
async def place() -> AsyncIterator[Served]:
    async with serving(*FLAGS) as (url, _), Client(url) as mcp:
        yield Served(mcp)


@pytest.mark.parametrize(
    "damage", ["rm -rf /workspace; mv /workspace /workspace2; rmdir /workspace; true", "chmod 000 /workspace"]
)
async def test_all_tools_work_after_a_program_has_spoilt_the_workspace(damage: str) -> None:
    async with place() as here:
        assert (await here.call("run_shell_command", command=damage))["outcome"] == "ok"
        assert "error" not in await here.call("list_files")
        assert "error" not in await here.call("write_file", path="a.txt", text="1")
        for tool, arguments in (
            ("run_python_code", {"code": "print(open('a.txt').read())"}),
            ("run_js_code", {"code": "console.log(require('fs').readFileSync('a.txt', 'utf8'))"}),
            ("run_shell_command", {"command": "cat a.txt; echo; pwd >&2"}),
        ):
            run = await here.call(tool, **arguments)
            assert (run["outcome"], run["stdout"]) == ("ok", "1\n"), run["stderr"]
        assert run["stderr"] == "/workspace\n"


@pytest.mark.parametrize("cwd", ["nosuch", "file.txt", "../..", "/etc", "gone"])
async def test_folder_that_nothing_can_start_in_is_refused_before_anything_runs(cwd: str) -> None:
    async with place() as here:
        await here.call("run_shell_command", command="touch file.txt; mkdir gone 'a b'")
        assert (await here.call("run_shell_command", command="pwd", cwd="a b"))["stdout"] == "/workspace/a b\n"
        await here.call("delete_file", path="gone")
        for tool, arguments in (
            ("run_shell_command", {"command": "touch ran"}),
            ("start_run", {"code": "open('ran', 'w')"}),
        ):
            answer = await here.call(tool, cwd=cwd, **arguments)
            assert answer["error"] in {"invalid_path", "not_found"}, answer
        assert "ran" not in {entry["path"] for entry in (await here.call("list_files"))["entries"]}


async def test_what_may_not_be_read_is_refused_by_name_and_all_can_be_deleted() -> None:
    async with place() as here, httpx2.AsyncClient() as http:
        await here.call("run_shell_command", command=LOCKED)
        listed = {e["path"]: e["unreadable"] for e in (await here.call("list_files", recursive=True))["entries"]}
        assert listed == {"no": True, "ro": False, "ro/a": False, "ro/a/f": False, "secret.txt": True}
        for refused in (
            await here.call("read_file", path="secret.txt"),
            await here.call("write_file", path="ro/a/g", text="1"),
        ):
            assert refused["error"] == "forbidden", refused
        archive = await http.get((await here.call("fetch_workspace"))["url"])
        with tarfile.open(fileobj=io.BytesIO(archive.content)) as tar:
            assert {"ro/a/f", "no"} <= set(tar.getnames())
        for path in ("ro", "no"):
            assert "error" not in await here.call("delete_file", path=path, recursive=True)
        assert [entry["path"] for entry in (await here.call("list_files"))["entries"]] == ["secret.txt"]


async def test_a_server_that_was_killed_leaves_nothing_once_the_next_one_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    async with serving(*FLAGS) as (url, pid), Client(url) as mcp:
        other = Served(mcp)
        assert (await other.call("run_shell_command", command=LOCKED))["outcome"] == "ok"
        below = descendants(pid)
        assert below
        await _start_and_end()  # takes nothing from the one that runs
        assert (await other.call("run_shell_command", command="ls"))["outcome"] == "ok"
        os.kill(pid, signal.SIGKILL)

        async def gone() -> bool:
            return not any(map(_exists, below))

        await until("all that it started has ended", gone)
        assert _names(tmp_path) != []
    await _start_and_end()
    assert _names(tmp_path) == []


async def _start_and_end() -> None:
    async with serving(*FLAGS) as (url, _), Client(url) as mcp:
        await mcp.list_tools()


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _names(folder: Path) -> list[Any]:
    return [path.name for path in folder.iterdir()]
