"""What programs do to their folders, and what is left of sandboxes and servers on this machine."""

import asyncio
import io
import os
import signal
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client

from support.cluster.server import serving
from support.gateway.backends import descendants
from support.gateway.peer import until
from support.gateway.served import LOCAL, Served

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

LOCKED = (
    "mkdir -p ro/a no; echo x > ro/a/f; echo s > no/f; echo t > secret.txt;"
    "chmod 444 ro/a/f; chmod 555 ro/a ro; chmod 000 no secret.txt"
)
NEXT = "from sandpod_gateway import temporary\nwith temporary.own_folder(): pass"


@pytest.mark.parametrize(
    "damage", ["rm -rf /workspace; mv /workspace /workspace2; rmdir /workspace; true", "chmod 000 /workspace"]
)
async def test_all_tools_work_after_a_program_has_spoilt_the_workspace(alone: Served, damage: str) -> None:
    assert (await alone.shell(damage))["outcome"] == "ok"
    assert "error" not in await alone.call("list_files")
    assert "error" not in await alone.call("write_file", path="a.txt", text="1")
    for tool, arguments in (
        ("run_python_code", {"code": "print(open('a.txt').read())"}),
        ("run_js_code", {"code": "console.log(require('fs').readFileSync('a.txt', 'utf8'))"}),
        ("run_shell_command", {"command": "cat a.txt; echo; pwd >&2"}),
    ):
        run = await alone.call(tool, **arguments)
        assert (run["outcome"], run["stdout"]) == ("ok", "1\n"), run["stderr"]
    assert run["stderr"] == "/workspace\n"


async def test_folder_that_nothing_can_start_in_is_refused_before_anything_runs(alone: Served) -> None:
    await alone.shell("touch file.txt; mkdir gone 'a b'")
    assert (await alone.shell("pwd", cwd="a b"))["stdout"] == "/workspace/a b\n"
    await alone.call("delete_file", path="gone")
    for cwd in ("nosuch", "file.txt", "../..", "/etc", "gone"):
        for refused in (
            await alone.shell("touch ran", cwd=cwd),
            await alone.call("start_run", code="open('ran', 'w')", cwd=cwd),
        ):
            assert refused["error"] in {"invalid_path", "not_found"}, refused
    assert "ran" not in {entry["path"] for entry in (await alone.call("list_files"))["entries"]}


async def test_what_may_not_be_read_is_refused_by_name_and_all_can_be_deleted(alone: Served) -> None:
    await alone.shell(LOCKED)
    listed = {e["path"]: e["unreadable"] for e in (await alone.call("list_files", recursive=True))["entries"]}
    assert listed == {"no": True, "ro": False, "ro/a": False, "ro/a/f": False, "secret.txt": True}
    for refused in (
        await alone.call("read_file", path="secret.txt"),
        await alone.call("write_file", path="ro/a/g", text="1"),
    ):
        assert refused["error"] == "forbidden", refused
    archive = await alone.http.get((await alone.call("fetch_workspace"))["url"])
    with tarfile.open(fileobj=io.BytesIO(archive.content)) as tar:
        assert {"ro/a/f", "no"} <= set(tar.getnames())
    await alone.call("make_directory", path="sub")
    renamed = await alone.call("move_file", source="ro", destination="ro2")
    assert renamed["destination"] == "ro2", "in the same folder, as a shell would"
    for source, destination in (
        ("ro2", "sub/ro"),
        ("no", "sub/no"),
        ("ro2/a/f", "f"),
        ("secret.txt", "ro2/secret.txt"),
    ):
        refused = await alone.call("move_file", source=source, destination=destination)
        assert (refused["error"], "permissions" in refused["next"]) == ("forbidden", True), refused
    for path in ("ro2", "no", "sub"):
        assert "error" not in await alone.call("delete_file", path=path, recursive=True)
    assert [entry["path"] for entry in (await alone.call("list_files"))["entries"]] == ["secret.txt"]


async def test_nothing_is_left_of_sandboxes_that_were_closed_or_have_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    async with serving(*LOCAL, "--local.idle-timeout", "1") as (url, pid), Client(url) as client:

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            return (await client.call_tool(tool, arguments)).structured_content or {}

        before, below = _all(tmp_path), descendants(pid)
        closed = (await call("create_sandbox", lifetime={"idle_timeout": 600}))["sandbox"]
        assert (await call("run_shell_command", command=LOCKED, sandbox=closed))["outcome"] == "ok"
        expired = (await call("run_shell_command", command=LOCKED))["sandbox"]
        assert closed != expired
        await call("close_sandbox", sandbox=closed)

        async def over() -> bool:
            return (await call("get_sandbox", sandbox=expired))["status"] != "Ready" and descendants(pid) == below

        await until("both have ended with their processes", over)
        assert _all(tmp_path) == before


async def test_a_server_that_was_killed_leaves_nothing_once_the_next_one_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    async with serving(*LOCAL) as (url, pid), Client(url) as other:
        assert not (await other.call_tool("run_shell_command", {"command": LOCKED})).is_error
        below = descendants(pid)
        assert below
        await _start_another()
        ran = await other.call_tool("run_shell_command", {"command": "ls"})
        assert (ran.structured_content or {})["outcome"] == "ok"
        os.kill(pid, signal.SIGKILL)

        async def gone() -> bool:
            return not any(map(_exists, below))

        await until("all that it started has ended", gone)
        assert _names(tmp_path) != []
    await _start_another()
    assert _names(tmp_path) == []


async def _start_another() -> None:
    """Do what every server does when it starts; that they do is seen in `test_stdio.py`."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", NEXT)
    assert await process.wait() == 0


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _all(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def _names(folder: Path) -> list[Any]:
    return [path.name for path in folder.iterdir()]
