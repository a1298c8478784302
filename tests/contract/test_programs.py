"""Programs through MCP in real sandboxes: background runs, keys, lost streams, contexts, pictures.

Over the local backend, which runs the same runner as a cluster's pods.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from fastmcp import Client

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.app import Gateway
from sandpod_gateway.backends.base import ByteStream
from sandpod_gateway.backends.local.backend import LocalBackend
from sandpod_gateway.settings import load
from support.background import read_until
from support.gateway.peers import until
from support.gateway.served import LIBRARIES, LOCAL, Served

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

LINES = "import time\nfor i in range(200):\n    print('line', i, flush=True)\n    time.sleep(0.05)\n"


class Caller(Served):
    gateway: Gateway

    async def until_running(self) -> None:
        """Return when a run is going on that somebody waits for."""
        sandboxes = self.gateway._sandboxes
        await until(lambda: any(map(sandboxes.running, sandboxes._slots)))

    async def cut_streams(self) -> None:
        """Close all streams to sandboxes, as a network that breaks does."""
        for slot in self.gateway._sandboxes._slots.values():
            if slot.connection is not None:
                await slot.connection._stream.close()

    def lose_next_frame(self, *, arrives: bool) -> None:
        """Close all streams at the next frame to their sandboxes, which arrives there or does not."""
        for slot in self.gateway._sandboxes._slots.values():
            assert slot.connection is not None
            slot.connection._stream = _Cut(slot.connection._stream, arrives=arrives)


class _Cut:
    """A stream that is closed at the next write."""

    def __init__(self, stream: ByteStream, *, arrives: bool) -> None:
        self._stream = stream
        self._arrives = arrives

    async def read(self) -> bytes:
        return await self._stream.read()

    async def write(self, data: bytes) -> None:
        if self._arrives:
            await self._stream.write(data)
        await self._stream.close()

    async def close(self) -> None:
        await self._stream.close()


@asynccontextmanager
async def served_by(gateway: Gateway) -> AsyncIterator[Caller]:
    async with gateway.running(), Client(gateway.mcp) as client, httpx2.AsyncClient() as http:
        caller = Caller(client, http)
        caller.gateway = gateway
        yield caller


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def one() -> AsyncIterator[Caller]:
    settings = load([*LOCAL, *LIBRARIES], config=None, program="sandpod")
    async with served_by(Gateway(settings, LocalBackend(settings.local))) as caller:
        yield caller


@pytest_asyncio.fixture(loop_scope="session")
async def caller(one: Caller) -> AsyncIterator[Caller]:
    """A caller whose sandboxes are the test's alone."""
    yield one
    await one.close()


@pytest.mark.claim("instructions", "start_run", "read_run", "read_run(cursor)", "list_runs", "work_with_sandpod.text")
async def test_a_background_run_is_begun_read_on_and_stopped(caller: Caller) -> None:
    run = await caller.call("start_run", code=LINES)
    first = await read_until(caller.call, run["run_id"], "line 0\n")
    assert first["state"] == "running"
    later = await caller.call("read_run", run_id=run["run_id"], cursor=first["cursor"], wait=10)
    assert "line 0\n" not in later["stdout"]
    assert later["stdout"].startswith("l")
    listed = (await caller.call("list_runs"))["runs"]
    assert [(entry["run_id"], entry["state"], entry["background"]) for entry in listed] == [
        (run["run_id"], "running", True)
    ]
    stopped = await caller.call("stop_run", run_id=run["run_id"])
    assert (stopped["state"], stopped["result"]["outcome"]) == ("ended", "cancelled")
    again = await caller.call("read_run", run_id=run["run_id"])
    assert again["result"]["outcome"] == "cancelled"
    assert again["stdout"].startswith("line 0\n")


async def test_a_run_that_somebody_waits_for_can_be_stopped_from_elsewhere(caller: Caller) -> None:
    await caller.python("1")
    task = asyncio.create_task(caller.python(LINES))
    await caller.until_running()
    live = [run for run in (await caller.call("list_runs"))["runs"] if run["state"] == "running"]
    stopped = await caller.call("stop_run", run_id=live[0]["run_id"])
    result = await task
    assert (stopped["result"]["outcome"], result["outcome"]) == ("cancelled", "cancelled")
    assert result["run_id"] == live[0]["run_id"]


async def test_a_background_run_outlives_its_stream(caller: Caller) -> None:
    code = "import sys\nprint('begun', flush=True)\nsys.stdin.read()\nprint('é' * 40000)\nsys.exit(3)"
    run = await caller.call("start_run", code=code, stdin="", timeout=60)
    await caller.cut_streams()
    output = await read_until(caller.call, run["run_id"])
    text, result = output["stdout"], output["result"]
    assert text == "begun\n" + "é" * 40000 + "\n"
    assert (result["outcome"], result["exit_code"], result["stdout_bytes"]) == ("error", 3, len(text.encode()))


async def test_a_run_that_is_not_there_is_told(caller: Caller) -> None:
    await caller.python("1")
    for run_id in ("no-such-run", "", ".", "sbx-x.run-1", "a.b.c", "../x.y", "用户.run", "x" * 300):
        for tool in ("read_run", "stop_run"):
            assert (await caller.call(tool, run_id=run_id))["error"] == ErrorCode.NOT_FOUND


@pytest.mark.claim(
    "run_shell_command",
    "run_shell_command(command)",
    "run_shell_command(language)",
    "start_run(language)",
    "work_with_sandpod.text",
)
async def test_a_language_of_the_settings_runs_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = (
        '[{"name": "strict", "command": ["sh", "-eu", "{file}"]}, {"name": "no", "command": ["no-such", "{file}"]}]'
    )
    monkeypatch.setenv("SANDPOD_LOCAL__LANGUAGES", strict)
    settings = load(["--local.warm", "0"], config=None, program="sandpod")
    async with served_by(Gateway(settings, LocalBackend(settings.local))) as caller:
        result = await caller.shell("echo begun; false; echo no", language="strict")
        assert (result["exit_code"], result["stdout"]) == (1, "begun\n")
        refused = await caller.shell("1", language="no")
        assert (refused["error"], "strict" in refused["next"]) == (ErrorCode.UNSUPPORTED_LANGUAGE, True)
        [content] = await caller.mcp.read_resource("sandpod://capabilities")
        [template] = json.loads(getattr(content, "text", ""))["templates"]["available"]
        assert template["languages"] == ["python", "javascript", "shell", "strict", "no"]


async def test_an_unknown_language_is_refused(caller: Caller) -> None:
    assert (await caller.call("start_run", code="1", language="cobol"))["error"] == ErrorCode.UNSUPPORTED_LANGUAGE


async def test_a_run_goes_on_over_another_stream_when_its_own_is_cut(caller: Caller) -> None:
    await caller.python("1")
    code = "import time\nfor i in range(40):\n    print('line', i, flush=True)\n    time.sleep(0.02)\n"
    got: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        assert progress
        got.append(message or "")

    task = asyncio.create_task(caller.mcp.call_tool("run_python_code", {"code": code}, progress_handler=note))
    await until(lambda: bool(got))
    await caller.cut_streams()
    result = (await task).structured_content
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("ok", 0)
    assert result["stdout"] == "".join(got) == "".join(f"line {i}\n" for i in range(40))


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_call_whose_stream_is_lost_with_its_first_frame_is_served_once(caller: Caller, arrives: bool) -> None:  # noqa: FBT001
    async def cut(tool: str, /, **arguments: Any) -> dict[str, Any]:
        caller.lose_next_frame(arrives=arrives)
        return await caller.call(tool, **arguments)

    code = "open('count', 'a').write('x')\nimport sys\nprint(sys.stdin.read() if {reads} else '')"
    await caller.python("1")
    ran = await cut("run_python_code", code=code.format(reads=False))
    assert (ran["outcome"], ran["stdout"]) == ("ok", "\n")
    read = await cut("run_python_code", code=code.format(reads=True), stdin="given" * 100_000)
    assert (read["outcome"], read["stdout_bytes"]) == ("ok", 500_001)
    keyed = await cut("run_python_code", code=code.format(reads=True), stdin="given", idempotency_key="k")
    assert (keyed["outcome"], keyed["stdout"]) == ("ok", "given\n")
    begun = await cut("start_run", code=code.format(reads=True), stdin="given")
    reading = await cut("read_run", run_id=begun["run_id"], wait=20)
    while reading["state"] != "ended":
        reading = await caller.call("read_run", run_id=begun["run_id"], wait=20, cursor=reading["cursor"])
    assert (await cut("read_run", run_id=begun["run_id"]))["stdout"] == "given\n"
    assert (await cut("read_file", path="count"))["content"] == "xxxx"
    assert "error" not in await cut("write_file", path="new", text="text")
    assert {entry["path"] for entry in (await cut("list_files"))["entries"]} == {"count", "new"}
    assert (await cut("stop_run", run_id=begun["run_id"]))["state"] == "ended"
    assert len((await cut("list_runs"))["runs"]) == 5
    deleted = await cut("delete_file", path="new")
    assert deleted["error"] == ErrorCode.SANDBOX_LOST, "twice is not the same as once"
    assert "not known" in deleted["message"]


@pytest.mark.claim("run_python_code(idempotency_key)")
async def test_the_same_key_runs_once_and_tells_the_same_end(caller: Caller) -> None:
    code = "open('n', 'a').write('x')\nimport time\ntime.sleep(0.5)\nprint(len(open('n').read()))"
    await caller.python("1")
    together = await asyncio.gather(*(caller.python(code, idempotency_key="k") for _ in range(3)))
    await caller.cut_streams()
    again = await caller.python(code, idempotency_key="k")
    assert {(r["run_id"], r["outcome"], r["stdout"]) for r in (*together, again)} == {(again["run_id"], "ok", "1\n")}
    other = await caller.python("print('other')", idempotency_key="k")
    assert other["error"] == ErrorCode.INVALID_ARGUMENT


async def test_a_cancelled_call_with_a_key_ends_the_program(caller: Caller) -> None:
    await caller.python("1")
    task = asyncio.create_task(caller.python(LINES, idempotency_key="k"))
    await caller.until_running()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    again = await caller.python(LINES, idempotency_key="k")
    assert again["outcome"] == "cancelled"


@pytest.mark.claim("run_python_code(context)", "list_contexts", "restart_context", "restart_context(context)")
async def test_variables_stay_in_a_context_and_the_last_value_comes_back(caller: Caller) -> None:
    await caller.python("x = 20\ndef f(): return x * 2", context="c")
    result = await caller.python("f() + 2", context="c")
    assert result["result"]["text/plain"] == "42"
    assert (result["context"], result["context_state"]) == ("c", "kept")
    assert (await caller.python("print(x)", context="other"))["outcome"] == "error"
    listed = (await caller.call("list_contexts"))["contexts"]
    assert {(entry["name"], entry["language"], entry["state"]) for entry in listed} == {
        ("c", "python", "idle"),
        ("other", "python", "idle"),
    }
    assert (await caller.call("restart_context", context="c"))["context"] == "c"
    assert "NameError" in (await caller.python("print(x)", context="c"))["stderr"]
    assert (await caller.call("restart_context", context="no-such"))["error"] == ErrorCode.NOT_FOUND


async def test_exit_timeout_and_await_keep_a_contexts_state(caller: Caller) -> None:
    await caller.python("x = 5\nimport asyncio, sys, time\nawait asyncio.sleep(0)", context="c")
    left = await caller.python("sys.exit(3)", context="c")
    assert (left["outcome"], left["exit_code"]) == ("error", 3)
    late = await caller.python("time.sleep(60)", context="c", timeout=1)
    assert (late["outcome"], late["context_state"]) == ("timeout", "kept")
    assert (await caller.python("print(x)", context="c"))["stdout"] == "5\n"


@pytest.mark.claim("run_python_code(context)", "run_js_code")
async def test_contexts_of_javascript_keep_variables_beside_those_of_python(caller: Caller) -> None:
    await caller.js("const x = { a: 20 }", context="js")
    result = await caller.js("const y: number = await x.a; ({ y })", context="js")
    assert result["result"] == {"text/plain": "{ y: 20 }", "application/json": '{"y":20}'}
    assert (result["context"], result["context_state"]) == ("js", "kept")
    late = await caller.js("for (;;);", context="js", timeout=1)
    assert (late["outcome"], late["context_state"]) == ("timeout", "kept")
    await caller.python("x = 1", context="py")
    listed = (await caller.call("list_contexts"))["contexts"]
    assert {(entry["name"], entry["language"]) for entry in listed} == {("js", "javascript"), ("py", "python")}
    refused = await caller.js("1", context="py")
    assert (refused["error"], "runs python" in refused["message"]) == (ErrorCode.INVALID_ARGUMENT, True)
    await caller.call("restart_context", context="js")
    gone = await caller.js("console.log(x)", context="js")
    assert "ReferenceError: x is not defined" in gone["stderr"]


async def test_a_background_run_can_be_in_a_context_of_javascript(caller: Caller) -> None:
    await caller.js("let x = 1", context="c")
    run = await caller.call("start_run", code="console.log(++x); x", language="javascript", context="c")
    output = await read_until(caller.call, run["run_id"])
    assert (output["stdout"], output["result"]["result"]["text/plain"]) == ("2\n", "2")
    assert (await caller.js("console.log(++x)", context="c"))["stdout"] == "3\n"
    refused = await caller.call("start_run", code="true", language="shell", context="c")
    assert refused["error"] == ErrorCode.INVALID_ARGUMENT


async def test_a_context_goes_with_no_fresh_sandbox(caller: Caller) -> None:
    assert (await caller.python("1", context="c", fresh=True))["error"] == ErrorCode.INVALID_ARGUMENT


@pytest.mark.promise("figures")
@pytest.mark.claim("run_python_code")
async def test_each_figure_comes_back_once_as_an_image(caller: Caller) -> None:
    shown = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
    left_open = "for i in (3, 4):\n    plt.figure(); plt.plot([i, 2 * i, 0])"
    ran = await caller.python(f"{shown}\n{left_open}")
    pictures = [picture.data for picture in caller.pictures]
    assert (ran["outcome"], ran["stderr"]) == ("ok", "")
    assert [len(pictures), len(set(pictures))] == [3, 3]
    assert all(picture.startswith("iVBOR") for picture in pictures)
    await caller.python("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.savefig('p.png')", context="c")
    assert len(caller.pictures) == 1


async def test_a_large_figure_comes_back_smaller_and_whole_as_an_artifact(caller: Caller) -> None:
    noise = "import matplotlib.pyplot as plt, numpy as np\nplt.figure(figsize=(10, 8), dpi=200)\n"
    result = await caller.python(f"{noise}plt.imshow(np.random.rand(1500, 1500))")
    assert (result["outcome"], result["displays_dropped"], len(caller.pictures)) == ("ok", 0, 1)
    assert len(caller.pictures[0].data) < result["artifacts"][0]["size"]
    assert "They are whole in the folder pictures." in result["hint"]


async def test_a_table_comes_back_in_a_rich_form(caller: Caller) -> None:
    code = "class T:\n    def _repr_html_(self): return '<table></table>'\nT()"
    assert "<table" in json.dumps((await caller.python(code, context="c"))["result"])


@pytest.mark.claim("read_run")
async def test_what_a_background_run_shows_comes_with_its_result_each_time_that_is_read(caller: Caller) -> None:
    code = (
        "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()\nprint('drawn', flush=True)\n"
        "display({'text/html': '<b>'}, raw=True)\nimport sys; sys.stdin.read()\ndisplay('x' * 1_000_000)"
    )
    run = await caller.call("start_run", code=code, stdin="")
    await caller.cut_streams()
    reading: dict[str, Any] = {"result": None, "cursor": 0}
    while reading["result"] is None:
        assert caller.pictures == []
        reading = await caller.call("read_run", run_id=run["run_id"], cursor=reading["cursor"], wait=20)
    for _ in range(2):
        result = reading["result"]
        assert [(shown["index"], shown["mime_type"], shown["text"]) for shown in result["displays"]] == [
            (0, "image/png", None),
            (1, "text/html", "<b>"),
        ]
        assert (result["outcome"], result["displays_dropped"]) == ("ok", 1)
        assert "1 thing that it showed was too much" in result["hint"]
        assert [picture.mime_type for picture in caller.pictures] == ["image/png"]
        reading = await caller.call("read_run", run_id=run["run_id"], cursor=reading["cursor"])


async def test_last_value_of_a_background_run_in_a_context_comes_with_its_result(caller: Caller) -> None:
    run = await caller.call("start_run", code="6 * 7", context="c")
    reading = await read_until(caller.call, run["run_id"])
    assert reading["result"]["result"] == {"text/plain": "42"}
    assert reading["result"]["displays_dropped"] == 0


@pytest.mark.claim("run_python_code")
async def test_what_is_shown_in_a_context_and_its_value_come_back(caller: Caller) -> None:
    code = (
        "from PIL import Image\nimport pandas as pd\nfrom IPython.display import Markdown\n"
        "Image.new('RGB', (7, 5)).show()\ndisplay(Markdown('**b**'))\npd.DataFrame({'a': [1]})"
    )
    result = await caller.python(code, context="c")
    assert [(shown["index"], shown["mime_type"]) for shown in result["displays"]] == [
        (0, "image/png"),
        (1, "text/markdown"),
    ]
    assert len(caller.pictures) == 1
    assert set(result["result"]) == {"text/plain", "text/html"}
    assert (result["stderr"], result["hint"], result["displays_dropped"]) == ("", None, 0)


@pytest.mark.claim("run_python_code(strip_ansi)")
async def test_colours_are_stripped_on_request_also_from_a_background_run(caller: Caller) -> None:
    code = "print('\\x1b[1;31mred\\x1b[0m', '\\x1b]0;title\\x07plain')"
    assert (await caller.python(code))["stdout"] == "\x1b[1;31mred\x1b[0m \x1b]0;title\x07plain\n"
    assert (await caller.python(code, strip_ansi=True))["stdout"] == "red plain\n"
    run = await caller.call("start_run", code=code)
    read = await read_until(caller.call, run["run_id"], strip_ansi=True)
    assert read["stdout"] == "red plain\n"


async def test_background_run_in_a_context_leaves_its_variables_there(caller: Caller) -> None:
    run = await caller.call("start_run", code="import os\nx = 41\nos.write(1, b'set\\n');", context="shared")
    read = await read_until(caller.call, run["run_id"])
    assert (read["stdout"], read["sandbox"]) == ("set\n", run["sandbox"])
    cell = await caller.python("x + 1", context="shared", sandbox=run["sandbox"])
    assert cell["result"] == {"text/plain": "42"}


async def test_files_are_made_moved_and_deleted_by_tools_as_the_programs_own(caller: Caller) -> None:
    await caller.call("make_directory", path="d/e")
    await caller.call("upload_file", filename="a.txt", text="1", path="d/e")
    code = "import os\nassert os.stat('d/e/a.txt').st_uid == os.getuid()\nopen('d/e/a.txt', 'a').write('2')"
    assert (await caller.python(code))["outcome"] == "ok"
    assert (await caller.call("stat_file", path="d/e/a.txt"))["size"] == 2
    await caller.call("move_file", source="d/e/a.txt", destination="b.txt")
    assert (await caller.call("read_file", path="b.txt"))["content"] == "12"
    assert (await caller.call("delete_file", path="d"))["error"] == ErrorCode.INVALID_PATH
    await caller.call("delete_file", path="d", recursive=True)
    await caller.call("delete_file", path="b.txt")
    assert (await caller.call("list_files"))["entries"] == []
    assert (await caller.call("move_file", source="../x", destination="y"))["error"] == ErrorCode.INVALID_PATH


async def test_a_refusal_says_what_to_do_about_its_own_case(caller: Caller) -> None:
    await caller.python(
        "import os; os.makedirs('full/inner'); open('full/a', 'w'); os.makedirs('shut'); os.chmod('shut', 0)"
    )

    async def step(tool: str, **arguments: Any) -> str:
        return str((await caller.call(tool, **arguments))["next"])

    assert "recursive=true" in await step("delete_file", path="full")
    assert "list_files" in await step("read_file", path="full")
    assert "path of a folder" in await step("list_files", path="full/a")
    assert "list_files" in await step("read_file", path="missing")
    assert "list_contexts" in await step("restart_context", context="no-such")
    assert "list_runs" in await step("read_run", run_id=(await caller.python("1"))["sandbox"] + ".run-none")
    assert "`cwd`" in await step("run_shell_command", command="ls", cwd="missing")
    refused = await caller.call("write_file", path="shut/a", text="x")
    assert (refused["error"], "permissions" in refused["next"]) == (ErrorCode.FORBIDDEN, True)
    await caller.python("import os; os.chmod('shut', 0o755)")
    assert "error" not in await caller.call("write_file", path="shut/a", text="x")
