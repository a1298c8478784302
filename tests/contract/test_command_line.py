"""The commands of `sandpod` that use a server, against local sandboxes."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from support.command_line import client
from support.gateway.fake_gateway import keys_file
from support.gateway.served import LOCAL, Served, gateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

HOSTILE = "a\n\x1b]0;owned\x07\u202e.txt"


@pytest.fixture(autouse=True)
def server(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SANDPOD_URL", address)
    monkeypatch.setenv("SANDPOD_PROFILES", str(tmp_path / "profiles.json"))


async def test_run_streams_and_has_the_programs_input_arguments_and_exit_code(alone: Served, tmp_path: Path) -> None:
    file = tmp_path / "it.sh"
    file.write_text('read -r line; echo "$1 $line $LEVEL"; echo no >&2; exit 7')
    done = await client("run", "--env", "LEVEL=3", str(file), "-x", given="typed\n")
    assert (done.code, done.out, done.err) == (7, "-x typed 3\n", "no\n")
    assert (await client("run", "-", given="print(6 * 7)")).out == "42\n"
    for _ in range(2):
        done = await client("run", "--context", "c", "-c", "n = globals().get('n', 0) + 1; n")
    assert done.out == "2\n"
    done = await client("run", "--json", "--timeout", "1", "--language", "shell", "-c", "echo so; sleep 600")
    assert (done.code, json.loads(done.out)["outcome"], json.loads(done.out)["stdout"]) == (124, "timeout", "so\n")
    done = await client("run", "--language", "cobol\x1b[2J", "-c", "1")
    assert (done.code, done.out, "\x1b" in done.err, done.err.count("\n")) == (125, "", False, 1)
    assert (await client("run", str(tmp_path / "missing.py"))).code == 125

    # What is written is there before the program ends.
    process = await asyncio.create_subprocess_exec(
        *("env", "--default-signal=INT"),  # what runs in the background of a shell ignores it, and so do its children
        *(sys.executable, "-m", "sandpod", "run", "-n", "-c"),
        "print('begun', flush=True); import time; time.sleep(600)",
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"begun\n"
    process.send_signal(2)
    assert await process.wait() == 130
    runs = (await alone.call("list_runs"))["runs"]
    assert [each["outcome"] for each in runs if each["state"] == "running"] == []
    assert runs[-1]["outcome"] == "cancelled"


async def test_files_and_folders_are_copied_both_ways_and_no_name_steers_the_terminal(
    alone: Served, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "one.bin").write_bytes(os.urandom(300_000))
    (tree / "sub/two.txt").write_text("two")
    (tree / "link").symlink_to("/etc/passwd")
    (tree / "empty/inner").mkdir(parents=True)
    done = await client("cp", str(tree), ":")
    assert (done.code, done.out, "link is left out" in done.err) == (0, "", True)
    assert (await client("ls", "-r")).out.splitlines() == [
        *("tree/", "tree/empty/", "tree/empty/inner/", "tree/one.bin", "tree/sub/", "tree/sub/two.txt")
    ]
    await client("cp", "-q", str(tree / "sub/two.txt"), str(tree / "one.bin"), "default:more/")
    done = await client("cp", "--json", str(tree / "sub/two.txt"), ":more/renamed")
    assert json.loads(done.out) == [{"source": str(tree / "sub/two.txt"), "target": "more/renamed"}]
    assert (await client("ls", ":more")).out.splitlines() == ["more/one.bin", "more/renamed", "more/two.txt"]
    await alone.call("run_shell_command", command="ln -s /etc tree/out; mkfifo tree/pipe")
    (tmp_path / "back").mkdir()
    done = await client("cp", ":tree", str(tmp_path / "back"))
    assert (done.code, done.err.count("is left out")) == (0, 2)
    assert tree_of(tmp_path / "back/tree") == tree_of(tree)
    (tmp_path / "nothing").mkdir()
    done = await client("cp", "--json", str(tmp_path / "nothing"), ":")
    assert json.loads(done.out) == [{"source": str(tmp_path / "nothing"), "target": "nothing"}]
    await client("cp", ":more/renamed", str(tmp_path / "named"))
    assert (tmp_path / "named").read_text() == "two"
    for wrong in (("a", "b"), (":a", ":b"), ("x:a", "y:b", "."), (":no-such", "."), (str(tmp_path / "no"), ":")):
        done = await client("cp", *wrong)
        assert (done.code, done.err.count("\n"), done.err.startswith("sandpod: ")) == (2, 1, True)

    await alone.call("run_python_code", code=f"open({HOSTILE!r}, 'w').close()")
    for command in (("ls",), ("ls", "-l"), ("ls", "--json"), ("cp", ":\x1b[2J", "."), ("logs", "\x1b[2J")):
        done = await client(*command)
        shown = (done.out + done.err).replace("\n", "")
        assert shown.isprintable(), command
    assert any("owned" in each["path"] for each in json.loads((await client("ls", "--json")).out))
    done = await client("cp", ":", str(tmp_path / "all"))
    assert (done.code, tree_of(tmp_path / "all/tree")) == (0, tree_of(tree))
    assert "\x1b" not in " ".join(names(tmp_path / "all"))


def names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def tree_of(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if not path.is_symlink()
    }


async def test_sandboxes_runs_logs_and_pools_are_shown_and_sandboxes_closed(alone: Served) -> None:
    made = await alone.call("create_sandbox", name="it")
    await alone.call("run_python_code", code="import sys; print('out'); print('err', file=sys.stderr)", sandbox="it")
    shown = (await client("ps")).out.splitlines()
    assert shown[0].split() == ["SANDBOX", "NAME", "STATUS", "TEMPLATE", "AGE", "EXPIRES", "RUNNING"]
    assert shown[1].split()[:3] == [made["sandbox"], "it", "Ready"]
    [run] = json.loads((await client("ps", "--json", "it")).out)
    assert (await client("ps", "it")).out.splitlines()[1].split()[:4] == [run["run_id"], "python", "ended", "ok"]
    for follow in ([], ["--follow"]):
        done = await client("logs", *follow, run["run_id"])
        assert (done.code, done.out, done.err) == (0, "out\n", "err\n")
    pools = json.loads((await client("pools", "--json")).out)
    assert [sorted({"pool", "template", "replicas", "ready"} - each.keys()) for each in pools] == [[]]
    assert (await client("close", "it")).out == "closed it\n"
    assert (await client("close", "it")).code == 2
    assert json.loads((await client("ps", "--json")).out) == []


@pytest.mark.usefixtures("alone")
async def test_who_logs_in_has_a_profile_and_the_doctor_sees_what_is_wrong(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SANDPOD_URL")
    monkeypatch.setitem(sys.modules, "keyring", None)
    path, [key] = keys_file(tmp_path, "alice")
    done = await client("doctor", "--json")
    found = {each["what"]: each["ok"] for each in json.loads(done.out)}
    assert (done.code, found["isolation"], found["Python"], found["server"]) == (0, True, True, None)
    async with gateway(*LOCAL, "--auth.keys-file", str(path)) as keyed:
        for wrong in ("", "sp_wrong", "two words"):
            done = await client("login", keyed, "--name", "team", given=f"{wrong}\n")
            assert (done.code, done.err.count("\n")) == (2, 1)
        done = await client("login", keyed, "--client-id", "cli")
        assert (done.code, "from a terminal" in done.err) == (2, True)
        done = await client("login", f"{keyed}/mcp", "--name", "team", "--json", given=f"{key}\n")
        assert json.loads(done.out)["profile"] == "team"
        assert key not in done.out + done.err
        assert json.loads((await client("run", "--json", "-c", "print('by profile')")).out)["stdout"] == "by profile\n"
        done = await client("doctor", "--json")
        assert [each["ok"] for each in json.loads(done.out) if each["what"] in {"server", "key"}] == [True, True]
        told = {each["what"]: each["found"] for each in json.loads(done.out)}
        assert "processes of the server's machine" in told["isolation there"]
        assert "`sandpod verify --backend local`" in told["proof"]
        done = await client("doctor", "--json", "--url", keyed)
        assert (done.code, [each["ok"] for each in json.loads(done.out) if each["what"] == "key"]) == (1, [False])
        assert (await client("ps", "--url", keyed)).code == 2
    done = await client("ps")
    assert (done.code, "can't be reached" in done.err) == (2, True)
    assert "needs no key" in (await client("login", address)).err
    assert (await client("ps", "--json")).out == "[]\n"
