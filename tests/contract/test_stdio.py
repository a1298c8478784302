"""`sandpod stdio` as clients start it, over a real local sandbox: its standard output is the protocol's alone."""

import asyncio
import contextlib
import io
import json
import os
import random
import signal
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


def call(number: int, tool: str, arguments: dict[str, Any], token: Any = 1) -> dict[str, Any]:
    meta = {} if token is None else {"progressToken": token}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
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


CALLS: list[tuple[str, dict[str, Any], str]] = [
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
"""What goes well and what goes wrong: tool, arguments, and the outcome or the error's code."""


def outcome(content: dict[str, Any] | None) -> str:
    assert content is not None
    return str(content.get("outcome", content.get("error")))


async def test_every_line_of_standard_output_is_a_message_whatever_goes_wrong(tmp_path: Path) -> None:
    said = tmp_path / "stdout"
    async with Client(StdioTransport("bash", ["-c", RECORDED, str(said)])) as client:
        for tool, arguments, expected in CALLS:
            answer = await client.call_tool(tool, arguments, raise_on_error=False)
            assert outcome(answer.structured_content) == expected
        await cancelled_call(client)
        with pytest.raises(Exception, match="There is no such sandbox"):
            await client.read_resource("sandpod://sandboxes/none/files/a")
    lines = said.read_bytes().splitlines()
    assert len(lines) > len(CALLS)
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


KILLED = (
    "import os, signal\nfrom sandpod_gateway import temporary\n"
    "with temporary.own_folder():\n    os.kill(os.getpid(), signal.SIGKILL)"
)


async def test_older_client_is_answered_whatever_it_sends_and_nothing_is_left_when_it_ends(tmp_path: Path) -> None:
    # Of a server that was killed before.
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert await killed.wait() == -signal.SIGKILL
    assert files_in(tmp_path) != []
    async with server(TMPDIR=str(tmp_path)) as process:
        for line in (b"{\n", b"\xff\xfe\n", b"[]\n", b"\n", b'{"jsonrpc":"2.0","id":9}\n'):
            tell(process, line)
        tell(process, INITIALIZE)
        tell(process, call(1, "run_python_code", {"code": "print('after')"}))
        assert (await answered(process, 1))["structuredContent"]["stdout"] == "after\n"
        await answers_what_is_broken_or_too_much(process)
        for number, (tool, arguments, expected) in enumerate(CALLS, 2):
            tell(process, call(number, tool, arguments))
            assert outcome((await answered(process, number)).get("structuredContent")) == expected
        await hears_progress_of_its_own_token(process)
        await outlives_cancels(process)
        await cancelled(process)
        tell(
            process,
            {**PING, "id": 98, "method": "resources/read", "params": {"uri": "sandpod://sandboxes/none/files/a"}},
        )
        assert "There is no such sandbox" in (await answer_to(process, 98))["error"]["message"]
        await leaves_nothing(process)
        assert files_in(tmp_path) == []


async def answers_what_is_broken_or_too_much(process: asyncio.subprocess.Process) -> None:
    """Expect an error for each line that is refused, and the next message to be handled."""
    too_long = b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":"' + b"a" * messages.MAX_BYTES + b'"}}'
    for name, (code, line) in {**HOSTILE, "a long line": (INVALID_REQUEST, too_long)}.items():
        tell(process, line + b"\n")
        answer = await heard(process)
        assert (answer["id"], answer["error"]["code"]) == (ID, code), name
        tell(process, PING)
        assert await heard(process) == {"jsonrpc": "2.0", "id": PING["id"], "result": {}}, name
    tell(process, b"{\n")
    assert (await heard(process))["error"]["code"] == PARSE_ERROR


async def hears_progress_of_its_own_token(process: asyncio.subprocess.Process) -> None:
    """Expect notifications that grow, each with the token of the call, and none after the answer."""
    code = "import sys\nfor i in range(3): print('x' * 500_000, flush=True); sys.stdin.readline()"
    for token in (0, "0", "", "t\u00f6k-1", 1099511627776):
        tell(process, call(40, "run_python_code", {"code": code}, token))
        told = []
        while (message := await heard(process)).get("id") != 40:
            assert message["method"] == "notifications/progress"
            assert repr(message["params"]["progressToken"]) == repr(token)
            told.append(message["params"]["progress"])
        assert told == sorted(set(told)) != []
        tell(process, PING)
        assert (await heard(process))["id"] == PING["id"]
    tell(process, call(40, "run_python_code", {"code": code}, None))
    assert (await heard(process))["id"] == 40


NEVER_CALLED = 9999
NO_CALL: list[dict[str, Any]] = [
    {"requestId": NEVER_CALLED},
    {"requestId": 40},  # has ended
    {"requestId": "x"},
    {},
    {"requestId": None},
    {"requestId": 1.5},
    {"requestId": [1]},
    {"requestId": 2**70},
    {"requestId": 40, "reason": "r" * 100_000},
]


async def outlives_cancels(process: asyncio.subprocess.Process) -> None:
    """Cancel many calls at any moment, and calls that there are not: each has at most one answer, and each ping has."""
    rng, answered = random.Random(7), set()  # noqa: S311 - moments, not secrets
    numbers = range(1000, 1100)
    for number in numbers:
        code = "print(1)" if number % 3 else "import os\nos.system('sleep 3067')"
        tell(process, call(number, "run_python_code", {"code": code}, None))
        await asyncio.sleep(rng.random() / 50)
        cancel = {"requestId": number} if number % 2 or number % 3 == 0 else NO_CALL[number % len(NO_CALL)]
        tell(process, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel})
        tell(process, {**PING, "id": f"ping {number}"})
        while (message := await heard(process)).get("id") != f"ping {number}":
            assert message["id"] in numbers
            assert message["id"] not in answered
            answered.add(message["id"])
    gone = "while ps -eo args | grep -q '^sleep 306[7]'; do sleep 0.05; done; echo gone"
    tell(process, call(41, "run_shell_command", {"command": gone}, None))
    expected = {number for number in numbers if number % 3 and not number % 2} | {41}  # nobody cancelled them
    while not expected <= answered:
        message = await heard(process)
        assert message["id"] in {*numbers, 41} - answered
        answered.add(message["id"])
        assert message["id"] != 41 or message["result"]["structuredContent"]["stdout"] == "gone\n"


async def cancelled(process: asyncio.subprocess.Process) -> None:
    """Call a program that goes on for ever, and cancel the call once it has begun; the next one is served."""
    code = "import time\nwhile True:\n    print('begun', flush=True)\n    time.sleep(0.01)"
    tell(process, call(96, "run_python_code", {"code": code}))
    while (await heard(process)).get("method") != "notifications/progress":
        pass
    tell(process, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 96}})
    tell(process, PING)
    await answer_to(process, 2)
    tell(process, call(97, "run_python_code", {"code": "print('next')"}, token=97))
    while (message := await heard(process)).get("id") != 97:
        assert message["params"]["progressToken"] == 97, "nothing comes of the one that was cancelled"
    assert message["result"]["structuredContent"]["stdout"] == "next\n"


async def leaves_nothing(process: asyncio.subprocess.Process) -> None:
    """End the client's side while a program runs, and expect the server, its programs and its sandboxes to end."""
    tell(process, call(99, "run_python_code", {"code": FOREVER}))
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
    assert message["jsonrpc"] == "2.0"
    return message


async def answer_to(process: asyncio.subprocess.Process, number: int) -> dict[str, Any]:
    """Return the answer to a message, after those before it."""
    while (message := await heard(process)).get("id") != number:
        pass
    return message


async def answered(process: asyncio.subprocess.Process, number: int) -> dict[str, Any]:
    """Return the result of a call."""
    result = (await answer_to(process, number))["result"]
    assert isinstance(result, dict)
    return result


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
