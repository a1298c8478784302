"""Other systems' tools over local sandboxes: their names, arguments and results, and the checks that they published."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastmcp import Client
from mcp_types import TextContent

from support.gateway.served import LOCAL, gateway
from support.servers.package_index import package_index

FLAGS = (*LOCAL, "--tools", "sandboxes", "--libraries", "numpy")
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

pytestmark = pytest.mark.needs_userns


class Place:
    def __init__(self, mcp: Client[Any]) -> None:
        self.mcp = mcp

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self.mcp.call_tool(tool, arguments, raise_on_error=False)
        assert isinstance(answer.structured_content, dict)
        assert not answer.is_error
        return answer.structured_content

    async def text(self, tool: str, **arguments: Any) -> str:
        answer = await self.mcp.call_tool(tool, arguments, raise_on_error=False)
        [first, *_] = answer.content
        assert isinstance(first, TextContent)
        return first.text


@asynccontextmanager
async def place(*flags: str) -> AsyncIterator[Place]:
    async with gateway(*FLAGS, *flags) as address, Client(f"{address}/mcp") as mcp:
        yield Place(mcp)


def coded(text: str | bytes) -> str:
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


async def test_philschmids_tools_return_bare_output_or_their_failure_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_MINE", "s3cret-value")
    async with place("--compat.systems", "philschmid", "--pass-through-env", "TOKEN_OF_MINE,NOT_SET") as here:
        failed = json.loads(await here.text("run_python_code", code="print('before')\nimport nonexistent_thing"))
        assert (failed["exit_code"], failed["stdout"]) == (1, "before\n")
        assert "ModuleNotFoundError" in failed["stderr"]
        assert json.loads(await here.text("run_python_code", code="raise SystemExit(7)"))["exit_code"] == 7
        assert await here.text("run_javascript_code", code="console.log('hi')") == "hi"
        assert "ReferenceError" in json.loads(await here.text("run_js_code", code="nope()"))["stderr"]
        masked = "import os\nprint(os.environ['TOKEN_OF_MINE'], os.environ.get('NOT_SET'))"
        assert await here.text("run_python_code", code=masked) == "**** None"
        # One call leaves nothing for the next.
        assert await here.text("run_python_code", code="open('left', 'w').close()") == ""
        assert await here.text("run_python_code", code="import os\nprint(os.listdir())") == "[]"
        assert "numpy" in (await here.mcp.read_resource("sandbox://environments"))[0].text  # type: ignore[union-attr]


async def test_philschmids_images_are_those_of_templates_from_flags_and_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with place("--compat.systems", "philschmid", "--python-image=none/such:1") as here:
        assert "No template of this server has the image none/such:1" in await here.text("run_python_code", code="1")
        assert await here.text("run_js_code", code="console.log(1)") == "1"
    monkeypatch.setenv("CONTAINER_IMAGE", "none/such:2")
    monkeypatch.setenv("CONTAINER_LANGUAGE", "javascript")
    async with place("--compat.systems", "philschmid") as here:
        assert "none/such:2" in await here.text("run_javascript_code", code="1")


async def test_gaiars_session_from_upload_to_close() -> None:
    async with place("--compat.systems", "gaiar", "--tools", '["sandboxes"]') as here:
        up = await here.call("sandbox_upload_file", filename="in.csv", content_base64=coded("a,b\n1,2\n"))
        session = up["session_id"]
        assert (up["path"], session[:5], len(session)) == ("/workspace/in.csv", "sess_", 17)
        code = f"open('/mnt/data/pic.png', 'wb').write({PNG!r})\nprint(open('in.csv').read(), end='')"
        ran = await here.call("sandbox_run_python", code=code, session_id=session)
        assert (ran["exit_code"], ran["stdout"], ran["stderr"]) == (0, "a,b\n1,2\n", "")
        assert (ran["stdout_truncated"], ran["stderr_truncated"], ran["run_id"][:6]) == (False, False, "run_20")
        # The picture once, and not the upload that was not touched.
        [made] = ran["artifacts"]
        assert (made["filename"], made["size_bytes"], made["mime_type"]) == ("pic.png", len(PNG), "image/png")
        assert await _get(made["download_url"]) == (200, PNG)
        read = await here.call("sandbox_read_artifact", session_id=session, path="/mnt/data/pic.png")
        assert base64.b64decode(read["content_base64"]) == PNG
        listed = await here.call("sandbox_list_artifacts", session_id=session)
        assert sorted(artifact["filename"] for artifact in listed["artifacts"]) == ["in.csv", "pic.png"]
        # Files stay, variables do not, and what is there is replaced only when that is said.
        again = {"filename": "in.csv", "content_base64": coded("new"), "session_id": session}
        assert (await here.call("sandbox_upload_file", **again))["error"] == "file_exists"
        assert (await here.call("sandbox_upload_file", **again, overwrite=True))["path"] == "/workspace/in.csv"
        changed = "f = open('in.csv', 'a'); f.write('!'); f.close(); print(open('in.csv').read())"
        assert (await here.call("sandbox_run_python", code=changed, session_id=session))["stdout"] == "new!\n"
        assert (await here.call("sandbox_run_python", code="made", session_id=session))["exit_code"] == 1
        await here.call("sandbox_run_python", code="import os; os.remove('pic.png')", session_id=session)
        assert (await _get(made["download_url"]))[0] == 404
        assert await here.call("sandbox_close_session", session_id=session) == {"status": "closed"}
        assert (await _get(made["download_url"]))[0] == 404
        for tool, more in (("close_session", {}), ("list_artifacts", {}), ("read_artifact", {"path": "x"})):
            assert (await here.call(f"sandbox_{tool}", session_id=session, **more))["error"] == "session_not_found"


async def _get(url: str) -> tuple[int, bytes]:
    async with httpx2.AsyncClient(timeout=30) as client:
        answer = await client.get(url)
    return answer.status_code, answer.content if answer.is_success else b""


async def test_gaiars_refusals_have_codes_and_make_no_session() -> None:
    limits = ("--limits.upload-bytes", "2048", "--limits.code-bytes", "1024")
    async with place("--compat.systems", "gaiar", "--tools", '["sandboxes"]', *limits) as here:
        good = {"filename": "a.txt", "content_base64": coded("x")}
        for wrong, code in (
            ({"filename": "../etc/passwd"}, "invalid_path"),
            ({"filename": "a b.txt"}, "invalid_filename"),
            ({"filename": "a\n"}, "invalid_filename"),
            ({"content_base64": "!!!"}, "invalid_content"),
            ({"content_base64": coded(bytes(4096))}, "upload_too_large"),
            ({"session_id": "a b"}, "invalid_session_id"),
            ({"session_id": "abc\n"}, "invalid_session_id"),
            ({"session_id": "x" * 65}, "invalid_session_id"),
            ({"session_id": ""}, "invalid_session_id"),
        ):
            assert (await here.call("sandbox_upload_file", **{**good, **wrong}))["error"] == code, wrong
        # Bytes count, and not characters.
        assert (await here.call("sandbox_run_python", code="#" + "é" * 600))["error"] == "code_too_large"
        assert (await here.call("sandbox_run_python", code="1", session_id="a/b"))["error"] == "invalid_session_id"
        assert (await here.call("list_sandboxes"))["sandboxes"] == []
        session = (await here.call("sandbox_upload_file", **good, session_id="mine"))["session_id"]
        assert session == "mine"
        for path in ("/etc/passwd", "../../etc/passwd", "/mnt/data/../../etc/passwd"):
            read = await here.call("sandbox_read_artifact", session_id="mine", path=path)
            assert read["error"] in {"invalid_path", "not_found"}
        assert (await here.call("sandbox_read_artifact", session_id="mine", path="none"))["error"] == "not_found"


async def test_gaiars_limits_of_time_output_and_sessions() -> None:
    limits = ("--limits.run-timeout", "4", "--limits.output-cap", "1024", "--local.max-sandboxes-per-owner", "1")
    async with place("--compat.systems", "gaiar", "--tools", '["sandboxes"]', *limits) as here:
        slow = {"code": "import time\nprint('on', flush=True)\ntime.sleep(60)", "session_id": "s"}
        running = asyncio.create_task(here.call("sandbox_run_python", **slow))
        while not any(each["running"] for each in (await here.call("list_sandboxes"))["sandboxes"]):
            assert not running.done()
        assert (await here.call("sandbox_run_python", code="1", session_id="s"))["error"] == "session_busy"
        assert (await here.call("sandbox_close_session", session_id="s"))["error"] == "session_busy"
        ended = await running
        assert (ended["exit_code"], ended["stdout"], "timed out" in ended["stderr"]) == (-1, "on\n", True)
        loud = "import sys\nprint('o' * 9000)\nprint('e' * 9000, file=sys.stderr)"
        told = await here.call("sandbox_run_python", code=loud, session_id="s")
        assert (told["stdout_truncated"], told["stderr_truncated"], len(told["stdout"]) < 2000) == (True, True, True)
        assert (await here.call("sandbox_run_python", code="1", session_id="other"))["error"] == "max_sessions"
        assert (await here.call("sandbox_run_python", code="exit(124)", session_id="s"))["exit_code"] == 124
        large = "open('large.bin', 'wb').write(bytes(2 ** 20))"
        await here.call("sandbox_run_python", code=large, session_id="s")
        read = await here.call("sandbox_read_artifact", session_id="s", path="large.bin")
        assert (read["error"], read["size_bytes"]) == ("artifact_too_large", 2**20)
        assert (await _get(read["download_url"]))[1] == bytes(2**20)


async def test_johanlis_sandbox_runs_code_commands_and_installations(tmp_path: Any) -> None:
    (tmp_path / "data.txt").write_text("from the server")
    (tmp_path.parent / "outside.txt").write_text("no")
    with package_index() as index:
        index.add("greet", "1.0")
        flags = ("--packages.index-url", index.url, "--compat.upload-dir", str(tmp_path))
        async with place("--compat.systems", "johanli233", *flags) as here:
            made = await here.call("create_sandbox")
            assert (made["name"], made["status"], set(made)) == (
                "Sandbox 1",
                "active",
                {"sandbox_id", "user_id", "name", "status"},
            )
            where = {"sandbox_id": made["sandbox_id"]}
            heredoc = "open('/app/results/out.txt', 'w').write('1')\ntext = '''\nEOL\n'''\nprint('ran')"
            ran = await here.call("execute_python_code", **where, code=heredoc)
            assert (ran["stdout"], ran["stderr"], ran["exit_code"]) == ("ran\n", "", 0)
            assert ran["files"] == ["/workspace/out.txt"]
            assert await _get(ran["file_links"][0]) == (200, b"1")
            piped = await here.call("execute_terminal_command", **where, command="echo a b | wc -w; exit 3")
            assert piped == {"stdout": "2\n", "stderr": "", "exit_code": 3}
            unknown = await here.call("execute_terminal_command", sandbox_id="sbx-none", command="ls")
            assert (unknown["exit_code"], "no session" in unknown["error"]) == (-1, True)
            status = {"package_name": "greet", **where}
            assert (await here.call("check_package_installation_status", **status))["status"] == "not_found"
            index.hold.clear()
            begun = await here.call("install_package_in_sandbox", **status)
            assert (begun["success"], begun["status"]) == (None, "installing")
            index.hold.set()
            done = await here.call("check_package_installation_status", **status)
            while done["status"] == "installing":
                done = await here.call("check_package_installation_status", **status)
            assert (done["status"], done["success"], done["complete"]) == ("success", True, True)
            injected = {"package_name": "greet --index-url=http://x", **where}
            assert (await here.call("install_package_in_sandbox", **injected))["success"] is False
            [listed] = (await here.call("list_sandboxes"))["result"]
            assert {"name": "greet", "version": "1.0"} in listed["installed_packages"]
            sent = await here.call("upload_file_to_sandbox", **where, local_file_path="data.txt")
            assert sent["success"] is True
            shown = await here.call("execute_terminal_command", **where, command="cat data.txt")
            assert shown["stdout"] == "from the server"
            for path in ("/etc/passwd", "../outside.txt", str(tmp_path.parent / "outside.txt")):
                refused = await here.call("upload_file_to_sandbox", **where, local_file_path=path)
                assert (refused["error"], "message" in refused) == (True, True)


async def test_chrishayuks_session_keeps_variables_and_text_files() -> None:
    async with place("--compat.systems", "chrishayuk") as here:
        assert "created" in await here.text("create_sandbox", session_id="s")
        assert "already exists" in await here.text("create_sandbox", session_id="s")
        assert (await here.call("get_sandbox_status", session_id="s"))["status"] == "active"
        assert (await here.call("get_sandbox_status"))["active_sessions"] == ["s"]
        assert "error" in await here.call("get_sandbox_status", session_id="none")
        assert (await here.call("execute_code", session_id="s", code="x = 41"))["error"] is None
        ran = await here.call("execute_code", session_id="s", code="print(x + 1)")
        assert ran["logs"] == {"stdout": ["42\n"], "stderr": []}
        assert "NameError" in (await here.call("execute_code", session_id="s", code="y"))["error"]
        once = await here.call("create_run_close", code="print('hello world')")
        assert (once["logs"]["stdout"], once["sandbox_closed"], once["sandbox_removed"]) == (
            ["hello world\n"],
            True,
            True,
        )
        text = "line é\nother\n"
        assert "message" in await here.call("write_file", session_id="s", file_path="/d/a.txt", content=text)
        assert (await here.call("read_file", session_id="s", file_path="/d/a.txt"))["content"] == text
        upload = {"file_name": "b.txt", "file_content": "b", "destination_path": "/d"}
        assert "message" in await here.call("upload_file", session_id="s", **upload)
        assert sorted((await here.call("list_files", session_id="s", path="/d"))["files"]) == ["a.txt", "b.txt"]
        found = await here.call("get_file_metadata", session_id="s", file_path="/d/b.txt")
        assert found["metadata"]["size"] == 1
        assert "message" in await here.call("delete_file", session_id="s", file_path="/d/b.txt")
        assert "error" in await here.call("read_file", session_id="s", file_path="/d/b.txt")
        assert "error" in await here.call("read_file", session_id="s", file_path="../../etc/passwd")
        assert "closed" in await here.text("close_sandbox", session_id="s")
        assert (await here.call("get_sandbox_status"))["active_sandbox_count"] == 0


async def test_chrishayuks_charts_are_pictures_of_data_that_is_never_code() -> None:
    # The environment of the tests has the libraries; no chart has to wait for them.
    drawing = ("--local.preimport", '["matplotlib.figure", "plotly.graph_objects"]')
    async with place("--compat.systems", "chrishayuk", "--local.python", sys.executable, *drawing) as here:
        await here.text("create_sandbox", session_id="s")
        rows = [{"x": "a'\"", "y": 1, "z": 3}, {"x": "b", "y": 2, "z": 1}]
        xy = {"session_id": "s", "data": rows, "x_key": "x", "y_keys": ["y", "z"], "title": 'It\'s "quoted"'}
        bars = {"session_id": "s", "data": rows, "category_key": "x", "value_keys": ["y", "z"]}
        points = {"session_id": "s", "data": rows, "x_key": "y", "y_key": "z", "color_key": "x", "size_key": "z"}
        heat = {"session_id": "s", "data": [[1, 2], [3, 4]], "row_labels": ["r", "s"], "save_path": "/tmp/d/h.png"}
        for kind, call in (("line_chart", xy), ("bar_chart", bars), ("scatter_plot", points), ("heatmap", heat)):
            answer = await here.mcp.call_tool(f"generate_{kind}", call)
            told = answer.structured_content or {}
            assert base64.b64decode(told["base64_image"])[:8] == PNG[:8], told
            assert [content.type for content in answer.content] == ["text", "image"]
        assert told["file_path"] == "/workspace/d/h.png"
        page = await here.call("generate_interactive_chart", **xy, chart_type="area")
        assert (page["interactive"], "plotly" in page["html_content"]) == (True, True)
        wrong = await here.call("generate_line_chart", **{**xy, "data": [{"x": 1, "y": {}}]})
        assert "The chart was not drawn" in wrong["error"]
