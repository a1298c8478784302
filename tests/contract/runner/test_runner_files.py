"""Files of the workspace: whole, bounded, and nothing outside it, whatever links there are."""

import asyncio
import hashlib
import os
import shutil
from pathlib import Path

import pytest

from sandpod_runner.files.workspace import PARTIAL
from sandpod_runner.protocol.messages import FILE_PART
from sandpod_runner.protocol.paths import spell
from support.runner.harness import Client, RefusedError, Runner, running

PASSWD = Path("/etc/passwd")
OUTSIDE = ["../x", "a/../../x", "/etc/passwd", "..", "/", "/proc/self/environ", "leak.txt", "up/etc/passwd"]
NO_PATHS = ["", "a\0b", "x" * 5000, "/".join(["y" * 200] * 30), "x" * 300, None, 5, ["a"], "\ud800"]
OPERATIONS = ["read", "list", "write", "delete", "mkdir", "stat", "move"]
ODD_NAMES = [
    "Q3 ventes \u2013 été (1).csv",
    "数据 表.csv",
    "-rf.txt",
    'it\'s "q".txt',
    ".hidden",
    "a\nb",
    "$(id)",
    "%2e%2e",
]


def seen_of_passwd() -> tuple[int, int, int]:
    info = PASSWD.stat()
    return info.st_ino, info.st_size, info.st_mtime_ns


@pytest.fixture
def workspace(runner: Runner) -> Path:
    """The workspace, with links that lead out of it."""
    for name, target in (("leak.txt", "/etc/passwd"), ("up", "/"), ("self", "."), ("loop", "loop")):
        (runner.workspace / name).unlink(missing_ok=True)
        (runner.workspace / name).symlink_to(target)
    return runner.workspace


@pytest.mark.everywhere
async def test_file_written_in_parts_is_read_back_whole(client: Client) -> None:
    for size in (0, 1, 17_000, 19_000, FILE_PART, FILE_PART + 1, 5_000_000):
        data = os.urandom(size)
        reply = await client.upload("s.bin", data)
        assert (reply["t"], reply["size"], reply["sha256"]) == ("reply", size, hashlib.sha256(data).hexdigest())
        seen = b""
        while part := (await client.file("read", path="s.bin", offset=len(seen), limit=FILE_PART)).payload:
            seen += part
        assert seen == data
        assert (await client.file("stat", path="s.bin")).header["size"] == size
        program = await client.run("sha256sum <s.bin", "shell")
        assert program.out.split()[0].decode() == reply["sha256"]


async def test_range_of_a_file_is_read(client: Client, workspace: Path) -> None:
    (workspace / "r.bin").write_bytes(bytes(range(256)) * 40)
    assert (await client.file("read", path="r.bin", offset=250, limit=20)).payload == (bytes(range(256)) * 2)[250:270]
    assert (await client.file("read", path="r.bin", offset=10**9, limit=20)).payload == b""


@pytest.mark.promise("no-escape")
@pytest.mark.parametrize("op", OPERATIONS)
async def test_path_that_is_none_or_leads_out_of_the_workspace_is_refused(
    client: Client, workspace: Path, op: str
) -> None:
    before = seen_of_passwd()
    fields = {"destination": "inside", "last": True, "overwrite": True}
    for path in OUTSIDE:
        if path == "leak.txt" and op in {"stat", "delete", "write", "move"}:
            # These are about the link itself, which is in the workspace.
            (workspace / "other").mkdir(exist_ok=True)
            await client.file(op, b"x", path=path, **{**fields, "destination": "other/moved"})
        else:
            code = await client.refused(op, b"x", path=path, **fields)
            assert code in {"invalid_path", "not_found", "file_exists"}, path
    for none in NO_PATHS:
        code = await client.refused(op, b"x", path=none, destination="inside", last=True)
        assert code in {"invalid_path", "not_found"}, none
    assert seen_of_passwd() == before


@pytest.mark.claim("read_file(path)")
async def test_absolute_path_inside_the_workspace_is_taken(client: Client, workspace: Path) -> None:
    await client.file("write", b"abc", path=f"{workspace}/abs.txt", last=True)
    assert (await client.file("read", path="abs.txt")).payload == b"abc"
    assert (await client.file("read", path="self/../abs.txt")).payload == b"abc"
    assert (await client.file("read", path="self/abs.txt")).payload == b"abc"


async def test_missing_file_and_missing_folder_are_not_found(client: Client, workspace: Path) -> None:
    for op in ("read", "list", "stat", "delete"):
        assert await client.refused(op, path="missing") == "not_found"
    assert await client.refused("read", path="missing/too") == "not_found"
    assert await client.refused("move", path="missing", destination="x") == "not_found"
    (workspace / "plain").write_text("1")
    assert await client.refused("read", path="plain/x") == "invalid_path"


async def test_existing_file_stays_unless_it_may_be_overwritten(client: Client, workspace: Path) -> None:
    (workspace / "u.txt").write_text("old")
    assert await client.refused("write", b"new", path="u.txt", last=True) == "file_exists"
    assert (workspace / "u.txt").read_text() == "old"
    await client.upload("u.txt", b"new")
    assert (workspace / "u.txt").read_text() == "new"
    (workspace / "folder").mkdir(exist_ok=True)
    assert await client.refused("write", b"new", path="folder", last=True, overwrite=True) == "invalid_path"


@pytest.mark.claim("write_file")
async def test_folders_on_the_way_to_a_new_file_are_made(client: Client, workspace: Path) -> None:
    await client.file("write", b"1", path="w/x/y.txt", last=True)
    assert (workspace / "w" / "x" / "y.txt").read_text() == "1"
    assert await client.refused("write", b"1", path="up/tmp/escaped/y.txt", last=True) == "invalid_path"
    assert "escaped" not in os.listdir("/tmp")  # noqa: PTH208 - a look at what is there


async def test_unfinished_file_is_seen_by_nobody_and_gone_with_its_stream(runner: Runner, workspace: Path) -> None:
    client = await runner.connect()
    await client.send({"t": "file", "id": 1, "op": "write", "path": "half/part.bin", "last": False}, b"half")
    assert (await client.file("list", path="half")).header["entries"] == []
    assert [entry.name[: len(PARTIAL)] for entry in (workspace / "half").iterdir()] == [PARTIAL]
    await client.close()
    async with asyncio.timeout(60):
        while list((workspace / "half").iterdir()):  # noqa: ASYNC110 - the end of a stream answers nothing
            await asyncio.sleep(0.01)


async def test_file_that_failed_at_its_first_part_is_told_once(client: Client, workspace: Path) -> None:
    (workspace / "there.txt").write_text("old")
    for last in (False, False, True):
        header = {"t": "file", "id": 1, "op": "write", "path": "there.txt", "overwrite": False, "last": last}
        await client.send(header, b"part")
    frame = await client.reply()
    assert frame.header["code"] == "file_exists"
    await client.send({"t": "ping", "id": 2})
    after = await client.reply()
    assert after.kind == "pong"
    assert (workspace / "there.txt").read_text() == "old"


async def test_special_files_are_refused_without_waiting_for_them(client: Client, workspace: Path) -> None:
    if not (workspace / "fifo").exists():
        os.mkfifo(workspace / "fifo")
    assert await client.refused("read", path="fifo") == "invalid_path"
    assert await client.refused("read", path=".") == "invalid_path"
    assert await client.refused("list", path="fifo") == "invalid_path"
    assert (await client.file("stat", path="fifo")).header["kind"] == "other"
    assert await client.refused("read", path="loop") == "invalid_path"


@pytest.mark.promise("file-names")
async def test_odd_names_are_one_name_everywhere(client: Client) -> None:
    for name in ODD_NAMES:
        await client.file("write", b"odd", path=f"odd/{name}", last=True)
        listed = [entry["path"] for entry in (await client.file("list", path="odd")).header["entries"]]
        assert spell(f"odd/{name}") in listed
        for said in {f"odd/{name}", spell(f"odd/{name}")}:
            assert (await client.file("read", path=said)).payload == b"odd"
        result = await client.run("import sys; print(open(sys.argv[1]).read(), end='')", args=[f"odd/{name}"])
        assert result.out == b"odd"


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        (b"caf\xe9.csv", r"caf\xe9.csv"),
        (b"line\nbreak.txt", r"line\x0abreak.txt"),
        (rb"caf\xe9.csv", r"caf\x5cxe9.csv"),
        (b"\xff/\x7f", r"\xff/\x7f"),
    ],
)
async def test_what_a_list_names_can_be_read_moved_and_deleted_by_that_name(
    client: Client, workspace: Path, name: bytes, spelled: str
) -> None:
    folder = workspace / "raw"
    file = folder / os.fsdecode(name)
    file.parent.mkdir(parents=True)
    file.write_text("1")
    entries = (await client.file("list", path="raw", recursive=True)).header["entries"]
    [listed] = [entry["path"] for entry in entries if entry["kind"] == "file"]
    assert listed == f"raw/{spelled}"
    run = await client.run(f"open({os.fsencode(file)!r}, 'a').write('2')")
    assert [artifact["path"] for artifact in run.end["artifacts"]] == [listed]
    assert (await client.file("read", path=listed)).payload == b"12"
    assert (await client.file("stat", path=listed)).header["path"] == listed
    await client.file("move", path=listed, destination=f"{listed}2")
    assert file.with_name(f"{file.name}2").read_text() == "12"
    await client.file("write", b"3", path=listed, last=True)
    assert file.read_text() == "3"
    for path in (listed, f"{listed}2"):
        await client.file("delete", path=path)
    shutil.rmtree(folder)


@pytest.mark.claim("list_files")
async def test_list_is_sorted_bounded_and_follows_no_links(client: Client, workspace: Path) -> None:
    tree = workspace / "tree"
    (tree / "b" / "c").mkdir(parents=True, exist_ok=True)
    for name in ("a.txt", "b/d.txt", "b/c/e.txt"):
        (tree / name).write_text("xyz")
    if not (tree / "link").is_symlink():
        (tree / "link").symlink_to("/etc")
    flat = (await client.file("list", path="tree")).header
    kinds = [
        (entry["path"], entry["kind"], entry["size"] if entry["kind"] == "file" else 0) for entry in flat["entries"]
    ]
    assert kinds == [("tree/a.txt", "file", 3), ("tree/b", "directory", 0), ("tree/link", "symlink", 0)]
    assert flat["truncated"] is False
    deep = (await client.file("list", path="tree", recursive=True)).header["entries"]
    names = ["tree/a.txt", "tree/b", "tree/link", "tree/b/c", "tree/b/d.txt", "tree/b/c/e.txt"]
    assert [entry["path"] for entry in deep] == names
    cut = (await client.file("list", path="tree", recursive=True, limit=2)).header
    assert (len(cut["entries"]), cut["truncated"]) == (2, True)


async def test_list_that_would_be_too_large_for_a_frame_is_cut(client: Client, workspace: Path) -> None:
    (workspace / "many").mkdir()
    for number in range(1200):
        (workspace / "many" / f"{number:04}{'n' * 200}").touch()
    listing = (await client.file("list", path="many", limit=10_000)).header
    assert listing["truncated"] is True
    assert 500 < len(listing["entries"]) < 1200
    shutil.rmtree(workspace / "many")


async def test_delete_takes_the_link_and_not_what_it_leads_to(client: Client, workspace: Path) -> None:
    (workspace / "target").mkdir(exist_ok=True)
    (workspace / "target" / "kept.txt").write_text("kept")
    (workspace / "gone" / "deep").mkdir(parents=True)
    (workspace / "gone" / "deep" / "link").symlink_to("../../target")
    (workspace / "gone" / "deep" / "etc").symlink_to("/etc")
    before = seen_of_passwd()
    assert await client.refused("delete", path="gone") == "invalid_path"
    await client.file("delete", path="gone", recursive=True)
    assert not (workspace / "gone").exists()
    assert (workspace / "target" / "kept.txt").read_text() == "kept"
    assert seen_of_passwd() == before
    assert await client.refused("delete", path=".", recursive=True) == "invalid_path"


async def test_mkdir_move_and_stat(client: Client) -> None:
    await client.file("mkdir", path="m/n/o")
    await client.file("mkdir", path="m/n/o")
    await client.upload("m/f.txt", b"12")
    assert await client.refused("mkdir", path="m/f.txt") == "file_exists"
    await client.file("move", path="m/f.txt", destination="m/n/g.txt")
    stat = (await client.file("stat", path="m/n/g.txt")).header
    assert (stat["path"], stat["kind"], stat["size"]) == ("m/n/g.txt", "file", 2)
    assert (await client.file("stat", path=".")).header["kind"] == "directory"
    await client.upload("m/h.txt", b"3")
    assert await client.refused("move", path="m/h.txt", destination="m/n/g.txt") == "file_exists"
    await client.file("move", path="m/h.txt", destination="m/n/g.txt", overwrite=True)
    assert await client.content("m/n/g.txt") == b"3"


@pytest.mark.promise("no-escape")
async def test_link_that_changes_all_the_time_never_leads_out(client: Client, workspace: Path) -> None:
    (workspace / "real").mkdir(exist_ok=True)
    (workspace / "real" / "passwd").write_text("inside")
    flip = (
        "import os\nprint('up')\n"
        "for n in range(10**9):\n"
        "    os.symlink(('real', '/etc')[n % 2], f'flip.{n}'); os.rename(f'flip.{n}', 'flip')\n"
    )
    name = await client.start(flip, timeout=999)
    await client.until_output(name, b"up\n")
    seen = set()
    for _ in range(150):
        try:
            seen.add((await client.file("read", path="flip/passwd")).payload)
        except RefusedError as refused:
            seen.add(refused.code.encode())
    assert seen <= {b"inside", b"invalid_path", b"not_found"}
    await client.send({"t": "cancel", "run": name})
    await client.finish(name)


@pytest.mark.everywhere
async def test_files_belong_to_the_user_that_runs_code(client: Client) -> None:
    await client.file("write", b"1", path="own.txt", last=True)
    code = (
        "import os\nopen('own.txt', 'a').write('2')\n"
        "has = os.stat('own.txt')\nprint(has.st_uid == os.getuid(), oct(has.st_mode))"
    )
    assert (await client.run(code)).out == b"True 0o100644\n"


async def test_full_disk_is_told_as_such_and_nothing_is_left(tmp_path: Path) -> None:
    # The limit on a file's size stands in for a full disk: the kernel refuses the write in the same place.
    limit = "import resource, signal; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    with running(tmp_path, prelude=limit) as runner:
        client = await runner.connect()
        assert await client.refused("write", bytes(200_000), path="large.bin", last=True) == "quota_exceeded"
        assert list(runner.workspace.iterdir()) == []
        await client.file("write", bytes(50_000), path="small.bin", last=True)
        await client.close()


async def test_listing_is_whole_however_many_folders_there_are(tmp_path: Path) -> None:
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))"
    with running(tmp_path, prelude=few) as runner:
        client = await runner.connect()
        for number in range(200):
            (runner.workspace / f"{number:03}" / "below").mkdir(parents=True)
        reply = await client.file("list", recursive=True)
        assert (len(reply.header["entries"]), reply.header["truncated"]) == (400, False)
        assert (await client.run("print(1)")).outcome == "ok"
        await client.close()


async def test_what_tools_cache_is_listed_and_is_no_artifact(client: Client) -> None:
    caches = [".pytest_cache", ".mypy_cache", ".ruff_cache", ".ipynb_checkpoints", "node_modules", "__pycache__"]
    code = f"import os\nfor name in {caches}: os.makedirs(f'tools/{{name}}/v')\nopen('tools/own.txt', 'w')\n"
    code += f"for name in {caches}: open(f'tools/{{name}}/v/file', 'w')"
    result = await client.run(code)
    assert [entry["path"] for entry in result.end["artifacts"]] == ["tools/own.txt"]
    listed = {entry["path"] for entry in (await client.file("list", path="tools", recursive=True)).header["entries"]}
    assert {f"tools/{name}/v/file" for name in caches} < listed


@pytest.mark.everywhere
async def test_what_may_not_be_read_is_marked_in_a_listing(client: Client) -> None:
    names = ["closed", "closed.txt", "open", "open.txt"]
    code = (
        "import os\nos.makedirs('marks/closed'), os.makedirs('marks/open')\nos.chdir('marks')\n"
        "open('open.txt', 'w'), open('closed.txt', 'w')\nos.chmod('closed', 0), os.chmod('closed.txt', 0)\n"
        f"print(*(name for name in {names} if not os.access(name, os.R_OK)))"
    )
    unreadable = (await client.run(code)).out.decode().split()
    listing = (await client.file("list", path="marks", recursive=True)).header
    assert [(entry["path"], entry.get("unreadable", False)) for entry in listing["entries"]] == [
        (f"marks/{name}", name in unreadable) for name in names
    ]
    assert listing["truncated"] is False


@pytest.mark.everywhere
async def test_folders_that_are_closed_to_their_own_user_can_be_deleted(client: Client) -> None:
    code = "mkdir -p ro/a/b no; touch ro/a/b/f no/f; chmod 555 ro/a/b ro/a ro; chmod 000 no"
    assert (await client.run(code, "shell")).outcome == "ok"
    for path in ("ro", "no"):
        await client.file("delete", path=path, recursive=True)
        assert await client.refused("stat", path=path) == "not_found"


async def test_files_runs_and_the_watch_on_the_disk_work_when_no_more_threads_can_be_had(tmp_path: Path) -> None:
    flag = tmp_path / "no more"
    start = f"[][1] if os.path.exists('{flag}') else start(self)"
    code = f"import os, threading; start = threading.Thread.start; threading.Thread.start = lambda self: {start}"
    code += "; from sandpod_runner.files import disk; disk.in_memory = lambda folder: False"
    with running(tmp_path, prelude=code, SANDPOD_WORKSPACE_BYTES=str(16 * 2**20)) as runner:
        client = await runner.connect()
        flag.touch()
        for number in range(10):
            await client.file("write", b"x", path=f"{number}", last=True)
        result = await client.run("for i in range(1000): open(f'f{i}', 'w')")
        assert (result.outcome, len(result.end["artifacts"])) == ("ok", 100)
        full = await client.run("n = 0\nwhile True:\n    n += 1\n    open(f'part-{n}', 'wb').write(bytes(1 << 20))")
        assert (full.outcome, full.end["detail"].split(":")[0]) == (
            "error",
            "It wrote more than the workspace's 16 MiB",
        )
        await client.close()


async def test_run_in_which_the_runner_itself_fails_ends_and_the_next_one_works(tmp_path: Path) -> None:
    flag = tmp_path / "fails"
    code = "import os; from sandpod_runner.runs.run import Run; look = Run._look_at_memory"
    code += f"; Run._look_at_memory = lambda self: [][1] if os.path.exists('{flag}') else look(self)"
    with running(tmp_path, prelude=code) as runner:
        client = await runner.connect()
        flag.touch()
        for context in (None, "c"):
            result = await client.run("print('said')", context=context)
            detail = "The runner failed: this is a fault of its own."
            assert (result.outcome, result.out, result.end["detail"]) == ("error", b"said\n", detail)
        flag.unlink()
        for context in (None, "c"):
            result = await client.run("print('said')", context=context)
            assert (result.outcome, result.out, result.end["detail"]) == ("ok", b"said\n", None)
        await client.close()


async def test_workspace_that_a_program_has_removed_or_closed_is_there_again(tmp_path: Path) -> None:
    with running(tmp_path) as runner:
        client = await runner.connect()
        for code in ("rm -r {0}", "chmod 000 {0}", "mv {0} {0}2") * 2:
            assert (await client.run(code.format(runner.workspace), "shell")).outcome == "ok"
            await client.upload("f.txt", b"x")
            assert (await client.run(code.format(runner.workspace), "shell")).outcome == "ok"
            assert (await client.run("pwd", "shell")).out.decode() == f"{runner.workspace}\n"
            await client.run(f"rm -rf {runner.workspace}2", "shell")
        await client.close()
