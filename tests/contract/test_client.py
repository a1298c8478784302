"""The Python client against local sandboxes: what its documentation says, both kinds of it, and broken connections."""

import asyncio
import doctest
import os
import signal
import sys
from pathlib import Path

import httpx2
import pytest

from sandpod import AsyncSandbox, NotFoundError, RunResult, Sandbox, SandpodError, blocking
from support.cluster.cluster import until
from support.gateway.served import Served
from support.servers.cut_connections import way_to

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/client.py"


async def test_what_the_class_says_of_itself_is_so(
    alone: Served, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDPOD_URL", f"{address}/mcp")
    found = await asyncio.to_thread(doctest.testmod, blocking, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0
    assert found.attempted > 10
    assert (await alone.call("list_sandboxes"))["sandboxes"] == []  # each was closed


@pytest.mark.usefixtures("alone")
async def test_runs_side_by_side_with_pictures_files_of_any_size_and_packages(address: str, tmp_path: Path) -> None:
    async with AsyncSandbox("mine", idle_timeout=600, url=address) as sandbox:
        assert (await sandbox.info()).name == "mine"
        shown: list[str] = []

        async def show(text: str) -> None:
            shown.append(text)

        both = await asyncio.gather(
            sandbox.run("print('a')", context=None, on_stdout=show), sandbox.run("echo b >&2", language="shell")
        )
        assert [(each.stdout, each.stderr) for each in both] == [("a\n", ""), ("", "b\n")]
        assert shown == ["a\n"]
        drawn = await sandbox.run("from PIL import Image; i = Image.new('L', (9, 9)); i.save('it.png'); display(i)")
        [picture] = drawn.pictures
        assert (picture.mime_type, picture.data[:4]) == ("image/png", b"\x89PNG")
        assert [each.path for each in drawn.artifacts] == ["it.png"]

        data = os.urandom(3 * 2**20 + 1)
        (tmp_path / "large").write_bytes(data)
        told: list[int] = []
        await sandbox.files.upload(tmp_path / "large", "a/b ?#%.bin", on_progress=lambda done, _: told.append(done))
        assert told[-1] == len(data)
        assert told == sorted(told)
        await sandbox.files.download("a/b ?#%.bin", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == data

        def break_off(_done: int, _size: int) -> None:
            raise LookupError

        with pytest.raises(LookupError):
            await sandbox.files.upload(tmp_path / "large", "half", on_progress=break_off)
        with pytest.raises(LookupError):
            await sandbox.files.download("a/b ?#%.bin", tmp_path / "half", on_progress=break_off)
        assert names(tmp_path) == ["back", "large"]
        with pytest.raises(NotFoundError) as missing:
            await sandbox.files.read("half")
        assert (missing.value.code, bool(missing.value.next_step)) == ("not_found", True)

        with pytest.raises(SandpodError, match="package"):
            await sandbox.packages.install("no such package")
        again = await AsyncSandbox.connect("mine", url=address)
        async with again:
            assert {each.run_id for each in await again.runs()} >= {each.run_id for each in both}
        # Who waits no more ends the program.
        waiting = asyncio.create_task(
            sandbox.run("print('begun', flush=True); input()", on_stdout=lambda _: waiting.cancel(), timeout=600)
        )
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [each.outcome for each in await sandbox.runs() if each.state == "running"] == []
        handle = sandbox.handle
    assert handle not in [each.sandbox for each in await AsyncSandbox.list(url=address)]


async def test_a_run_goes_on_over_a_new_connection_with_no_output_lost_or_told_twice(
    alone: Served, address: str
) -> None:
    code = "import os, time\nfor n in range(3):\n  print(n, flush=True)\n"
    code += "  while not os.path.exists(str(n)): time.sleep(0.01)"
    async with way_to(address) as way:
        sandbox = await AsyncSandbox.connect("default", url=way.address)
        shown: list[str] = []

        async def show(text: str) -> None:
            shown.append(text)
            way.cut()
            await alone.call("write_file", path=text.strip(), text="")

        async with sandbox:
            result = await sandbox.run(code, on_stdout=show)
            assert (shown, result.stdout, way.cuts) == (["0\n", "1\n", "2\n"], "0\n1\n2\n", 3)
            # Nobody follows this one, and its end is waited for over two connections as well.
            waiting = asyncio.create_task(sandbox.run("import os\nwhile not os.path.exists('3'): pass\nprint('over')"))

            async def runs() -> bool:
                return "running" in [each["state"] for each in (await alone.call("list_runs"))["runs"]]

            await until("it runs", runs, within=60)
            way.cut()
            await alone.call("write_file", path="3", text="")
            assert (await waiting).stdout == "over\n"
            # The first without a loop, from the middle on.
            blocking_one = await asyncio.to_thread(lambda: Sandbox.connect("default", url=way.address))
            events = await asyncio.to_thread(lambda: list(blocking_one.get_run(result.run_id).events(cursor=2)))
            await asyncio.to_thread(blocking_one.__exit__)
            assert "".join(each.text for each in events if not isinstance(each, RunResult)) == "1\n2\n"


async def test_three_lines_start_a_server_that_ends_with_its_program_however_that_ends(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    code = f"{EXAMPLE.read_text()}\nfrom sandpod.local_server import address; print(address()[0], flush=True); input()"
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code), env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert program.stdout is not None
    assert await program.stdout.readline() == b"2\n"
    url = (await program.stdout.readline()).decode().strip()
    async with httpx2.AsyncClient() as anybody:
        assert (await anybody.get(f"{url}/api/v1/sandboxes")).status_code == 401
    handle = os.pidfd_open(child(program.pid))
    program.send_signal(signal.SIGKILL)
    await program.wait()
    ended = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().add_reader(handle, ended.cancel)
    async with asyncio.timeout(60):
        await asyncio.wait([ended])
    asyncio.get_running_loop().remove_reader(handle)
    os.close(handle)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def child(program: int) -> int:
    """Return the one process that a program has started."""
    return int(Path(f"/proc/{program}/task/{program}/children").read_text())
