"""What descriptions of tools and arguments say, tried by a client in local sandboxes: one test for each topic."""

import base64

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.settings import LimitSettings
from support.background import read_until
from support.gateway.served import Served

OUTPUT = LimitSettings().output_chars

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]


@pytest.mark.claim(
    "instructions",
    "run_python_code",
    "run_python_code(sandbox)",
    "run_python_code(context)",
    "run_js_code",
    "run_shell_command",
    "restart_context",
    "create_sandbox",
    "work_with_sandpod.text",
)
async def test_the_three_languages_share_files_and_keep_variables_in_contexts_alone(served: Served) -> None:
    first = await served.python("open('/workspace/shared', 'w').write('p'); x = 1")
    again = await served.python("print(x)")
    assert (again["outcome"], again["sandbox"]) == ("error", first["sandbox"])
    await served.js("require('fs').appendFileSync('shared', 'j'); globalThis.x = 1")
    assert (await served.js("console.log(typeof x)"))["stdout"] == "undefined\n"
    await served.shell("printf s >> shared; x=1")
    shown = await served.shell("cat shared; printf $x")
    assert (shown["stdout"], shown["sandbox"]) == ("pjs", first["sandbox"])
    await served.python("kept = 5", context="own")
    assert (await served.python("kept", context="own"))["result"]["text/plain"] == "5"
    await served.call("restart_context", context="own")
    gone = await served.python("print(open('shared').read(), 'kept' in globals())", context="own")
    assert (gone["stdout"], gone["context_state"]) == ("pjs False\n", "kept")


@pytest.mark.claim(
    "instructions",
    "run_python_code",
    "run_python_code(code)",
    "run_js_code",
    "run_js_code(code)",
    "run_shell_command",
    "run_shell_command(command)",
    "work_with_sandpod.text",
)
@pytest.mark.parametrize(
    ("tool", "argument", "code"),
    [
        ("run_python_code", "code", "import sys; 6 * 7; print('out'); print('err', file=sys.stderr); sys.exit(3)"),
        ("run_js_code", "code", "6 * 7; console.log('out'); console.error('err'); process.exit(3)"),
        ("run_shell_command", "command", "echo out; echo err >&2; exit 3"),
    ],
)
async def test_failed_run_is_a_normal_result_and_only_what_is_printed_is_seen(
    served: Served, tool: str, argument: str, code: str
) -> None:
    told = await served.call(tool, **{argument: code})
    assert [told[name] for name in ("stdout", "stderr", "exit_code", "outcome")] == ["out\n", "err\n", 3, "error"]
    assert told["result"] is None


@pytest.mark.claim("run_shell_command", "run_shell_command(cwd)")
async def test_shell_is_bash_where_there_is_one_and_begins_in_the_folder_that_is_named(served: Served) -> None:
    await served.call("make_directory", path="deep/er")
    code = 'echo "${BASH_VERSION:+bash} $PWD $GIVEN"'
    told = await served.shell(code, cwd="deep/er", env={"GIVEN": "1"})
    assert told["stdout"] == "bash /workspace/deep/er 1\n"


@pytest.mark.claim(
    "run_shell_command(cwd)",
    "start_run",
    "start_run(code)",
    "start_run(language)",
    "read_run(run_id)",
    "stop_run",
    "work_with_sandpod.text",
)
async def test_background_run_of_each_language_ends_at_its_timeout_or_when_it_is_stopped(served: Served) -> None:
    for language, code in (
        ("python", "import os, sys; print(os.getcwd(), *sys.argv[1:], os.environ['E'], input())"),
        (
            "javascript",
            "process.stdin.on('data', (d) => console.log(process.cwd(), process.argv[2], process.env.E, `${d}`))",
        ),
        ("shell", 'read -r line; echo "$PWD $1 $E $line"'),
    ):
        begun = await served.call(
            "start_run", code=code, language=language, args=["a"], env={"E": "e"}, stdin="in\n", cwd="deep"
        )
        assert begun["state"] == "running"
        read = await read_until(served.call, begun["run_id"])
        assert read["stdout"].strip() == "/workspace/deep a e in"
    late = await served.call("start_run", code="sleep 60", language="shell", timeout=0.5)
    assert (await read_until(served.call, late["run_id"]))["result"]["outcome"] == "timeout"
    child = "import subprocess; p = subprocess.Popen(['sleep', '61']); print('begun', flush=True); p.wait()"
    begun = await served.call("start_run", code=child)
    await read_until(served.call, begun["run_id"], "begun\n")
    assert (await served.call("stop_run", run_id=begun["run_id"]))["result"]["outcome"] == "cancelled"
    left = await served.shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "sleep 61" not in left["stdout"]
    listed = {run["run_id"]: run for run in (await served.call("list_runs"))["runs"]}
    assert listed[begun["run_id"]]["state"] == "ended"
    ordinary = await served.python("print('by its name')")
    assert (await served.call("read_run", run_id=ordinary["run_id"]))["stdout"] == "by its name\n"


@pytest.mark.claim(
    "run_python_code(sandbox)",
    "create_sandbox",
    "list_sandboxes",
    "get_sandbox",
    "get_sandbox(sandbox)",
    "close_sandbox",
)
async def test_sandbox_of_its_own_is_told_of_and_ended(served: Served) -> None:
    await served.call("write_file", path="mine", text="1", overwrite=True)
    made = await served.call("create_sandbox", lifetime={"ttl": 500, "idle_timeout": 400})
    handle = made["sandbox"]
    code = "cat mine; cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    begun = await served.call("start_run", code="sleep 62", language="shell")
    seen = await served.shell(code, sandbox=handle)
    assert seen["sandbox"] == handle
    assert ("No such file" in seen["stderr"], "sleep 62" in seen["stdout"]) == (True, False)
    await served.call("stop_run", run_id=begun["run_id"])
    told = await served.call("get_sandbox", sandbox=handle)
    assert (told["status"], told["reason"], told["network"]) == ("Ready", None, "none")
    assert told["age_seconds"] > 0
    assert told["created_at"] < told["expires_at"]
    entry = next(each for each in (await served.call("list_sandboxes"))["sandboxes"] if each["sandbox"] == handle)
    assert (entry["status"], entry["expires_at"] is not None) == ("Ready", True)
    assert (await served.call("close_sandbox", sandbox=handle))["sandbox"] == handle
    assert (await served.call("read_file", path="mine", sandbox=handle))["error"] == ErrorCode.SESSION_NOT_FOUND
    assert (await served.call("read_file", path="mine"))["content"] == "1"


@pytest.mark.claim(
    "list_files",
    "list_files(path)",
    "list_files(recursive)",
    "list_files(limit)",
    "read_file",
    "read_file(path)",
    "read_file(offset)",
    "read_file(limit)",
    "read_file(encoding)",
    "stat_file",
    "write_file",
    "write_file(text)",
    "write_file(content_base64)",
    "read_artifact",
)
async def test_files_are_listed_read_and_looked_at_as_described(served: Served) -> None:
    await served.call("write_file", path="f/text.txt", text="h\u00e9llo")
    await served.call("write_file", path="f/sub/bytes.bin", content_base64="/wD+")
    await served.shell("ln -sf text.txt f/link")
    flat = (await served.call("list_files", path="f"))["entries"]
    assert {(entry["path"], entry["kind"]) for entry in flat} == {
        ("f/link", "symlink"),
        ("f/sub", "directory"),
        ("f/text.txt", "file"),
    }
    [text] = [entry for entry in flat if entry["path"] == "f/text.txt"]
    assert (text["size"], text["modified_at"] is not None) == (6, True)
    deep = await served.call("list_files", path="f", recursive=True)
    assert "f/sub/bytes.bin" in {entry["path"] for entry in deep["entries"]}
    few = await served.call("list_files", path="f", recursive=True, limit=2)
    assert (len(few["entries"]), few["truncated"], deep["truncated"]) == (2, True, False)
    for path, encoding, content in (
        ("f/text.txt", "utf-8", "h\u00e9llo"),
        ("/workspace/f/sub/bytes.bin", "base64", "/wD+"),
    ):
        read = await served.call("read_file", path=path)
        assert (read["encoding"], read["content"], read["truncated"]) == (encoding, content, False)
    forced = await served.call("read_file", path="f/text.txt", encoding="base64")
    assert base64.b64decode(forced["content"]) == "h\u00e9llo".encode()
    part = await served.call("read_file", path="f/text.txt", offset=3, limit=2)
    assert (part["content"], part["truncated"]) == ("ll", True)
    await served.call("write_file", path="f/long.txt", text="x" * 200_000)
    first = await served.call("read_file", path="f/long.txt")
    assert (first["bytes"], len(first["content"]), first["truncated"]) == (OUTPUT, OUTPUT, True)
    rest = await served.call("read_file", path="f/long.txt", offset=OUTPUT)
    assert (rest["offset"], rest["bytes"], rest["size"]) == (OUTPUT, OUTPUT, 200_000)
    most = await served.call("read_file", path="f/long.txt", limit=200_000)
    assert (most["bytes"], most["truncated"]) == (131072, True)
    assert (await served.call("stat_file", path="f/link"))["kind"] == "symlink"
    looked = await served.call("stat_file", path="f/text.txt")
    assert (looked["kind"], looked["size"], looked["mime_type"]) == ("file", 6, "text/plain")
    assert looked["modified_at"] == text["modified_at"]
    assert (await served.call("stat_file", path="f/sub"))["kind"] == "directory"
    await served.python("open('left.bin', 'wb').write(b'\\xff\\0')")
    left = await served.call("read_artifact", artifact="left.bin")
    assert (left["encoding"], left["content"]) == ("base64", "/wA=")


@pytest.mark.claim(
    "write_file(overwrite)",
    "upload_file",
    "upload_file(path)",
    "make_directory",
    "move_file",
    "move_file(source)",
    "move_file(destination)",
    "delete_file",
    "delete_file(recursive)",
    "work_with_sandpod.text",
)
async def test_files_are_put_moved_and_deleted_as_described(served: Served) -> None:
    assert (await served.call("upload_file", filename="u.txt", text="1", path="up/here"))["path"] == "up/here/u.txt"
    again = {"filename": "u.txt", "content_base64": "Mg==", "path": "up/here"}
    assert (await served.call("upload_file", **again))["error"] == ErrorCode.FILE_EXISTS
    await served.call("upload_file", **again, overwrite=True)
    assert (await served.call("read_file", path="up/here/u.txt"))["content"] == "2"
    link = await served.call("upload_file", filename="u.txt", path="up/here")
    await served.http.put(link["url"], content=b"3")
    assert (await served.call("read_file", path="up/here/u.txt"))["content"] == "3"
    await served.call("make_directory", path="up/here")
    assert (await served.call("stat_file", path="up/here/u.txt"))["size"] == 1
    for target, outcome in (("no/such/folder.txt", ErrorCode.NOT_FOUND), ("up/here/v.txt", None)):
        moved = await served.call("move_file", source="up/here/u.txt", destination=target)
        assert moved.get("error") == outcome
    await served.call("move_file", source="up/here", destination="up/there")
    assert (await served.call("read_file", path="up/there/v.txt"))["content"] == "3"
    await served.call("make_directory", path="up/empty")
    await served.shell("ln -s there up/link")
    for path in ("up/empty", "up/link", "up/there/v.txt"):
        assert (await served.call("delete_file", path=path))["path"] == path
    assert "error" in await served.call("delete_file", path="up")
    assert (await served.call("delete_file", path="up", recursive=True))["path"] == "up"


@pytest.mark.claim("work_with_sandpod", "work_with_sandpod.text")
async def test_work_is_done_as_the_prompt_says(served: Served) -> None:
    await served.call("write_file", path="data.csv", text="a\n1\n2\n", overwrite=True)
    failed = await served.python("print(rows)")
    assert (failed["outcome"], failed["exit_code"], "NameError" in failed["stderr"]) == ("error", 1, True)
    draw = "import matplotlib.pyplot as plt\nplt.plot(rows)\nplt.savefig('chart.png')"
    done = await served.python(f"rows = [int(r) for r in open('data.csv').readlines()[1:]]\n{draw}")
    assert (done["outcome"], len(served.pictures)) == ("ok", 1)
    begun = await served.call("start_run", code="for i in range(3): print(i)", timeout=600)
    assert (await read_until(served.call, begun["run_id"]))["stdout"] == "0\n1\n2\n"
    assert (await served.call("stop_run", run_id=begun["run_id"]))["state"] == "ended"
    one = await served.call("create_link", path="chart.png")
    assert (await served.http.get(one["url"])).content.startswith(b"\x89PNG")
    whole = await served.call("fetch_workspace")
    assert (await served.http.get(whole["url"])).content.startswith(b"\x1f\x8b")
    packages = {package["name"]: package["source"] for package in (await served.call("list_packages"))["packages"]}
    assert packages["matplotlib"] == "image"
