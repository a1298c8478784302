"""`sandpod stdio` as clients start it, over a real local sandbox: its standard output is the protocol's alone."""

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from mcp_types import INVALID_REQUEST, PARSE_ERROR

from sandpod_gateway.api import messages
from support.gateway.backends import descendants
from support.gateway.hostile_messages import HOSTILE, ID
from support.gateway.peer import BOUND, until
from support.gateway.peers import INITIALIZE, PING

pytestmark = pytest.mark.needs_userns

PROGRAM = str(Path(sys.executable).with_name("sandpod"))
# A client's process, with what the server says to it kept in a file. The shell stands between them as wrappers do.
RECORDED = f'"{PROGRAM}" stdio --log-level debug --local.warm 0 2>"$0.err" | tee "$0"'
FOREVER = "import time\nprint('begun', flush=True)\ntime.sleep(600)"


def call(number: int, code: str) -> dict[str, Any]:
    params = {"name": "run_python_code", "arguments": {"code": code}, "_meta": {"progressToken": number}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def cancelled_call(client: Client[Any]) -> None:
    """Call a program that goes on for ever, and cancel the call once it has begun."""
    begun = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        del progress, total, message
        begun.set()

    task = asyncio.create_task(client.call_tool("run_python_code", {"code": FOREVER}, progress_handler=note))
    await asyncio.wait_for(begun.wait(), BOUND)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_every_line_of_standard_output_is_a_message_whatever_goes_wrong(era: Any, tmp_path: Path) -> None:
    said = tmp_path / "stdout"
    calls: list[tuple[str, dict[str, Any], str]] = [
        ("run_python_code", {"code": "print('fine')"}, "ok"),
        ("run_python_code", {"code": "import os\nos.write(1, bytes(range(256)))\nraise ValueError"}, "error"),
        ("run_python_code", {"code": FOREVER, "timeout": 0.2}, "timeout"),
        ("run_shell_command", {"command": "kill -9 $$"}, "error"),
        ("run_python_code", {"code": 3}, "invalid_argument"),
        ("read_file", {"path": "../../etc/passwd"}, "invalid_path"),
        ("get_sandbox", {"sandbox": "none"}, "session_not_found"),
        ("create_sandbox", {"template": "none"}, "invalid_argument"),
        ("create_link", {"path": "../a"}, "invalid_path"),
    ]
    async with Client(StdioTransport("bash", ["-c", RECORDED, str(said)]), mode=era) as client:
        for tool, arguments, expected in calls:
            answer = await client.call_tool(tool, arguments, raise_on_error=False)
            content = answer.structured_content
            assert content is not None
            assert content.get("outcome", content.get("error")) == expected
        await cancelled_call(client)
        with pytest.raises(Exception, match="There is no such sandbox"):
            await client.read_resource("sandpod://sandboxes/none/files/a")
    lines = said.read_bytes().splitlines()
    assert len(lines) > len(calls)
    for line in lines:
        assert json.loads(line)["jsonrpc"] == "2.0"
    assert " WARNING " in said.with_suffix(".err").read_text(encoding="utf-8"), "logs go to standard error"


async def test_files_pass_by_links_that_this_machine_alone_reaches() -> None:
    flags = ["stdio", "--local.warm", "0", "--links.in-content"]
    transport = StdioTransport(PROGRAM, flags, keep_alive=False)
    async with Client(transport) as client, httpx2.AsyncClient() as http:

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            content = (await client.call_tool(tool, arguments)).structured_content
            assert isinstance(content, dict)
            return content

        put = await call("upload_file", filename="in.bin")
        assert put["url"].startswith("http://127.0.0.1:")
        assert (await http.put(put["url"], content=b"\0\1")).status_code == 201
        answer = await client.call_tool("run_shell_command", {"command": "cp in.bin out.bin"})
        assert [block.type for block in answer.content] == ["text", "resource_link"]
        assert answer.structured_content is not None
        [artifact] = answer.structured_content["artifacts"]
        assert (await http.get(artifact["url"])).content == b"\0\1"
        archive = await http.get((await call("fetch_workspace"))["url"])
        with tarfile.open(fileobj=io.BytesIO(archive.content)) as tar:
            assert tar.getnames() == ["in.bin", "out.bin"]
        rebound = await http.get(artifact["url"], headers={"Host": "rebound.example"})
        assert (rebound.status_code, rebound.content) == (400, b"Invalid host header")
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(artifact["url"])


async def test_input_that_is_broken_or_too_much_is_answered_and_the_next_message_is_handled() -> None:
    too_long = b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":"' + b"a" * messages.MAX_BYTES + b'"}}'
    async with server() as process:
        for line in (b"{\n", b"\xff\xfe\n", b"[]\n", b"\n", b'{"jsonrpc":"2.0","id":9}\n'):
            tell(process, line)
        tell(process, INITIALIZE)
        tell(process, call(1, "print('after')"))
        while (message := await heard(process)).get("id") != 1:
            assert message["jsonrpc"] == "2.0"
        assert message["result"]["structuredContent"]["stdout"] == "after\n"
        for name, (code, line) in {**HOSTILE, "a long line": (INVALID_REQUEST, too_long)}.items():
            tell(process, line + b"\n")
            answer = await heard(process)
            assert (answer["id"], answer["error"]["code"]) == (ID, code), name
            tell(process, PING)
            assert await heard(process) == {"jsonrpc": "2.0", "id": PING["id"], "result": {}}, name
        tell(process, b"{\n")
        assert (await heard(process))["error"]["code"] == PARSE_ERROR


async def test_a_client_that_ends_ends_the_server_its_programs_and_its_sandboxes(tmp_path: Path) -> None:
    async with server(TMPDIR=str(tmp_path)) as process:
        tell(process, INITIALIZE)
        tell(process, call(1, FOREVER))
        while (await heard(process)).get("method") != "notifications/progress":
            pass
        below = descendants(process.pid)
        assert below
        assert process.stdin is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), BOUND) == 0

        async def gone() -> bool:
            return not any(exists(f"/proc/{pid}") for pid in below)

        await until("all that it started has ended", gone)
        assert files_in(tmp_path) == []


def exists(path: str) -> bool:
    return Path(path).exists()


def files_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@contextlib.asynccontextmanager
async def server(**environment: str) -> Any:
    """A server whose ends are the test's."""
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "stdio", "--log-level", "debug", "--local.warm", "0"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
        limit=2**20,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def tell(process: asyncio.subprocess.Process, message: dict[str, Any] | bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")


async def heard(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    message = json.loads(await asyncio.wait_for(process.stdout.readline(), BOUND))
    assert isinstance(message, dict)
    return message


async def test_settings_choose_toolsets_and_leave_links_out() -> None:
    flags = ["stdio", "--tools", "core,files,links", "--local.warm", "0", "--no-links.loopback"]
    async with Client(StdioTransport(PROGRAM, flags)) as client:
        listed = {tool.name for tool in await client.list_tools()}
        unlisted = await client.call_tool("list_sandboxes", {}, raise_on_error=False)
        unlinked = await client.call_tool("create_link", {"path": "a", "method": "put"}, raise_on_error=False)
        run = await client.call_tool("run_shell_command", {"command": "echo > a"})
    assert {"run_python_code", "create_link"} < listed
    assert "list_sandboxes" not in listed
    assert (unlisted.structured_content or {})["error"] == "forbidden"
    assert (unlinked.structured_content or {})["error"] == "invalid_argument"
    assert [artifact["url"] for artifact in (run.structured_content or {})["artifacts"]] == [None]
